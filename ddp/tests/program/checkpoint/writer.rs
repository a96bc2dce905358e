//! Saving while training continues.

use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use ddp::checkpoint::{SaveOutcome, Saver, SnapshotBuffers, Writer};
use ddp::model::ParamLayout;
use ddp::storage::disk::Disk;
use ddp_kernels::Device;
use tracing::field::Field;
use tracing::{Event, Subscriber};
use tracing_subscriber::Registry;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

use super::faulty_disk::{Fate, FaultyDisk};
use super::fixture::*;

/// A disk that creates no folder until it is allowed to.
#[derive(Debug, Default)]
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

impl Disk for Gate {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        drop(self.opened.wait_while(self.is_open.lock().unwrap(), |is_open| !*is_open).unwrap());
        std::fs::create_dir_all(path)
    }
}

fn fill(buffers: &mut SnapshotBuffers, layout: &ParamLayout, step: u64) {
    let state: Vec<_> = STATES.iter().map(|name| values(name, step, 0..layout.flat_len())).collect();
    let state: Vec<&[f32]> = state.iter().map(Vec::as_slice).collect();
    buffers.fill(Some(&values("weights", step, 0..layout.flat_len())), &state).unwrap();
}

fn steps(outcomes: Vec<SaveOutcome>) -> Vec<u64> {
    let step = |outcome| match outcome {
        SaveOutcome::Saved(saved) => saved.step,
        SaveOutcome::Failed { step, error } => panic!("step {step}: {error}"),
    };
    outcomes.into_iter().map(step).collect()
}

#[test]
fn training_goes_on_while_a_snapshot_is_written() {
    let dir = temp_dir();
    let layout = layout(&[3, 5, 2]);
    let store = saved(dir.path(), &layout, 1, []);
    let gate = Arc::new(Gate::default());
    let saver = Saver::new(store.clone().with_disk(gate.clone()), options(&layout, 0, 1));
    let made = SnapshotBuffers::for_device(Device::Cpu, layout.flat_len(), &[layout.flat_len(); 3]).unwrap();
    let place = made.weights().as_ptr();
    let mut writer = Writer::start(saver, made).unwrap();

    let (mut buffers, waited) = writer.take_buffers();
    assert_eq!(waited, Duration::ZERO);
    fill(&mut buffers, &layout, 1);
    assert_eq!(writer.save(run_state(1), buffers).unwrap(), Duration::ZERO);
    assert_eq!((writer.poll().len(), writer.saving()), (0, Some(1)), "the gate is closed");
    assert!(store.steps().unwrap().is_empty());

    // The next save waits for the first, and reports how long; it uses the same memory.
    let opener = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(80));
        gate.open();
    });
    let started = Instant::now();
    let (mut buffers, waited) = writer.take_buffers();
    assert!(waited >= Duration::from_millis(70) && waited <= started.elapsed(), "{waited:?}");
    assert_eq!(buffers.weights().as_ptr(), place);
    assert_eq!(steps(writer.poll()), [1]);
    check_content(&store.newest_valid().unwrap().found.unwrap(), &layout, 2);
    fill(&mut buffers, &layout, 2);
    writer.save(run_state(2), buffers).unwrap();
    assert_eq!(steps(writer.finish()), [2]);
    check_content(&store.newest_valid().unwrap().found.unwrap(), &layout, 2);
    assert_eq!(store.steps().unwrap(), [1, 2]);
    opener.join().unwrap();
}

#[test]
fn a_failed_save_is_told_and_the_next_one_goes_on() {
    let dir = temp_dir();
    let layout = layout(&[3, 5, 2]);
    let store = saved(dir.path(), &layout, 1, []);
    let disk = Arc::new(FaultyDisk::new(3, Fate::FailOnce(rustix::io::Errno::NOSPC)));
    let saver = Saver::new(store.clone().with_disk(disk), options(&layout, 0, 1));
    let mut writer = Writer::start(saver, SnapshotBuffers::default()).unwrap();
    for step in [1, 2] {
        let (mut buffers, _) = writer.take_buffers();
        fill(&mut buffers, &layout, step);
        writer.save(run_state(step), buffers).unwrap();
    }
    let outcomes = writer.finish();
    assert_eq!(outcomes.iter().map(SaveOutcome::step).collect::<Vec<_>>(), [1, 2]);
    let SaveOutcome::Failed { error, .. } = &outcomes[0] else { panic!("{outcomes:?}") };
    assert!(error.to_string().contains("No space left on device"), "{error}");
    assert!(error.to_string().contains("there is no good checkpoint yet"), "{error}");
    assert!(matches!(&outcomes[1], SaveOutcome::Saved(saved) if saved.step == 2));
    assert_eq!(names(&store), ["latest", "step-2"]);
}

#[test]
fn a_run_that_fails_waits_for_no_other_rank() {
    let dir = temp_dir();
    let layout = layout(&[3, 5, 2]);
    let store = saved(dir.path(), &layout, 2, []);
    let mut options = options(&layout, 0, 2);
    options.rank_timeout = Duration::from_secs(600);
    let mut writer = Writer::start(Saver::new(store.clone(), options), SnapshotBuffers::default()).unwrap();
    let (mut buffers, _) = writer.take_buffers();
    fill(&mut buffers, &layout, 1);
    writer.save(run_state(1), buffers).unwrap();
    let started = Instant::now();
    drop(writer);
    assert!(started.elapsed() < Duration::from_secs(20));
    assert!(store.steps().unwrap().is_empty());
}

/// Captured log of the process.
#[derive(Debug, Clone, Default)]
struct Lines(Arc<Mutex<String>>);

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut lines = self.0.lock().unwrap();
        event.record(&mut |_: &Field, value: &dyn std::fmt::Debug| *lines += &format!("{value:?}\n"));
    }
}

/// A run may collect the outcomes of saves only at its end, hours later.
#[test]
fn a_save_that_is_given_up_is_reported_at_once() {
    let lines = Lines::default();
    // Installed for the whole process, because the writer has its own thread.
    tracing::subscriber::set_global_default(Registry::default().with(lines.clone())).unwrap();
    let dir = temp_dir();
    let layout = layout(&[3, 5, 2]);
    let store = saved(dir.path(), &layout, 2, []);
    let mut options = options(&layout, 0, 2);
    options.rank_timeout = Duration::from_millis(150);
    let mut writer = Writer::start(Saver::new(store, options), SnapshotBuffers::default()).unwrap();
    let (mut buffers, _) = writer.take_buffers();
    fill(&mut buffers, &layout, 77);
    writer.save(run_state(77), buffers).unwrap();
    let started = Instant::now();
    let is_reported = || {
        let log = lines.0.lock().unwrap();
        log.contains("the checkpoint of step 77 was not saved") && log.contains("rank 1 wrote nothing for")
    };
    while !is_reported() {
        assert!(started.elapsed() < Duration::from_secs(20), "nothing was reported: {lines:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(matches!(&writer.finish()[..], [SaveOutcome::Failed { step: 77, .. }]));
}
