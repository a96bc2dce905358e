//! Interpretation of memory faults: a kernel that left its memory, a host that dereferenced a device pointer, or one that used a
//! pinned buffer too early. Other faults are passed to the previous handler.

use super::{MEMORY, SHIFT, host, is_device};
use crate::config::CONFIG;
use crate::report::report;
use crate::{counts, watch};
use std::cell::Cell;
use std::ffi::CString;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, Once, OnceLock};
use std::time::Duration;

/// `vgpu_fault` of a module: ends the running kernel with a message and doesn't return.
pub(crate) type Escape = unsafe extern "C" fn(*const libc::c_char);

thread_local! {
    static KERNEL: Cell<Option<Escape>> = const { Cell::new(None) };
    static HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// While `run` runs, a fault on this thread counts as a fault of the kernel, and `escape` ends the kernel.
pub(crate) fn in_kernel<T>(escape: Escape, run: impl FnOnce() -> T) -> T {
    KERNEL.set(Some(escape));
    let result = run();
    KERNEL.set(None);
    result
}

/// While `run` runs, this thread may use pinned buffers, because later work in its stream has not begun.
pub(crate) fn in_host_function(run: impl FnOnce()) {
    HOST_FUNCTION.set(true);
    run();
    HOST_FUNCTION.set(false);
}

/// Signals whose previous handlers are called for other faults.
const SIGNALS: [i32; 3] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGABRT];
static FORMER: OnceLock<[libc::sigaction; 3]> = OnceLock::new();

/// Installs handlers for the fault signals, once.
pub(crate) fn catch_faults() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let former = SIGNALS.map(|signal| {
            // SAFETY: an all-zero sigaction is a valid value: no handler, no flags, empty mask.
            let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
            action.sa_sigaction = on_signal as *const () as usize;
            // A kernel leaves the handler with a jump, so the signal must not stay blocked.
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
            let mut old = action;
            // SAFETY: both point to valid structures; the handler lives as long as the library, which is never
            // unloaded.
            unsafe { libc::sigaction(signal, &action, &mut old) };
            old
        });
        let _ = FORMER.set(former);
    });
}

/// Gives this thread a stack for signal handlers, because the fault may be a stack overflow.
pub(crate) fn alternate_stack() {
    const SIZE: usize = 64 << 10;
    let stack = Box::leak(vec![0u8; SIZE].into_boxed_slice());
    let stack = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: SIZE };
    // SAFETY: the memory is leaked, so it outlives the thread.
    unsafe { libc::sigaltstack(&stack, null_mut()) };
}

/// Locks in a signal handler: waits for other threads, but gives up if this thread may hold the lock itself.
pub(super) fn lock_in_handler<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    for _ in 0..200 {
        if let Ok(guard) = mutex.try_lock() {
            return Some(guard);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}

fn describe(p: u64) -> String {
    lock_in_handler(&MEMORY).map_or_else(|| format!("{p:#x}"), |memory| memory.describe(p))
}

extern "C" fn on_signal(signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    if signal == libc::SIGABRT {
        counts::write();
        return restore(signal);
    }
    // SAFETY: the kernel passes a valid siginfo_t.
    let info = unsafe { &*info };
    // SAFETY: the signals other than SIGABRT are those of a fault, whose siginfo_t has an address.
    let at = unsafe { info.si_addr() } as u64;
    if let Some(escape) = KERNEL.get() {
        let what = if is_device(at.wrapping_sub(SHIFT)) {
            format!("illegal address {}", describe(at - SHIFT))
        } else if is_device(at) {
            format!("dereference of a device pointer that did not come in as an argument: {}", describe(at))
        } else {
            format!("illegal address {at:#x} (a host pointer, or the stack of a thread overflowed)")
        };
        let what = CString::new(what).unwrap_or_default();
        // SAFETY: this thread runs a kernel of the module that `escape` is from; it jumps back to the launch.
        unsafe { escape(what.as_ptr()) };
    }
    if let Some(what) = host::on_fault(at) {
        if !HOST_FUNCTION.get() {
            report(&what);
        }
        return;
    }
    if is_device(at) {
        report(&format!("the host dereferenced a device pointer: {}", describe(at)));
        if CONFIG.trace {
            watch::say_state();
        }
    }
    counts::write();
    restore(signal);
}

/// Restores the previous handler; the fault then happens again and is handled there.
fn restore(signal: i32) {
    let former = SIGNALS.iter().position(|&s| s == signal).and_then(|i| FORMER.get().map(|all| &all[i]));
    if let Some(former) = former {
        // SAFETY: `former` is what sigaction(2) gave for this signal.
        unsafe { libc::sigaction(signal, former, null_mut()) };
    }
}
