//! The program runs on the CPU; tests/run also runs it on a virtual GPU.

use std::process::Command;

#[test]
fn all_calls_succeed_on_the_cpu() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_outside")).env("CUDA_VISIBLE_DEVICES", "").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("layers and loops on cpu: all calls"), "{said}");
}
