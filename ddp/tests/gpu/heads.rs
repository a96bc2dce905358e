//! Several heads on GPUs reach the losses of the CPU, also in bf16, with captured steps.

use ddp::config::precision::Precision;
use ddp::train::trainer::GraphMode;

use crate::made_up::Setup;
use crate::made_up::gpus::{gpus, on_gpus};

#[test]
fn several_heads_train_as_on_the_cpu() {
    for n in [1, 3] {
        let Some(_gpus) = gpus(n) else { continue };
        let on_cpu = Setup { deterministic: true, n_epochs: 2, ..Setup::several_heads() };
        let want = on_cpu.train_on(n);
        for (graph, precision, tolerance) in
            [(GraphMode::On, Precision::F32, 2e-5), (GraphMode::Off, Precision::Bf16, 0.05)]
        {
            let setup = on_gpus(&Setup { precision, ..on_cpu.clone() }, graph);
            let got = setup.train_on(n);
            assert_eq!(got.n_graphs > 0, graph == GraphMode::On, "{n} GPUs");
            for (got, want) in got.losses.iter().zip(&want.losses) {
                assert!(
                    (got - want).abs() <= tolerance * want.abs(),
                    "{n} GPUs, {precision:?}: {got}, {want}"
                );
            }
            assert_eq!(got.eval.heads().len(), 3);
        }
    }
}
