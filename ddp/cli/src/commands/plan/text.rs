//! The plan as text: a table of times, one of memory, and remarks.

use std::fmt::Write as _;

use ddp::cost::memory_plan::MemoryKind;

use super::memory::RankMemory;
use super::outlook::{Estimate, Outlook};
use super::subject::Subject;
use crate::commands::bench::{number, percent};
use crate::commands::describe::{grouped, mib};
use crate::report::stdout::table;

/// Formats the plans for all numbers of ranks.
pub(super) fn to_text(subject: &Subject, outlooks: &[Outlook], is_measured: bool) -> String {
    let hardware = subject.machine.hardware;
    let constants = if is_measured {
        "constants measured where --calibrate has them"
    } else {
        "constants from data sheets and from runs on one H100"
    };
    let mut text = format!(
        "{} on {}, {} ranks per host: an estimate; {constants}\n\n",
        subject.config.name, hardware.name, subject.machine.per_host
    );
    let possible = || outlooks.iter().filter_map(|outlook| Some((outlook, outlook.estimate.as_ref()?)));
    let titles = [
        "ranks",
        "rows/step",
        "step ms",
        "= input",
        "+ forward",
        "+ backward",
        "+ exposed exchange",
        "+ update",
        "host to device",
        "samples/s",
        "efficiency",
        "epoch s",
    ];
    let rows = possible().map(
        |(outlook, Estimate { time, global_rows, samples_per_s, scaling_efficiency, epoch_s, .. })| {
            let exchange = format!("{} of {}", number(time.exposed_exchange_ms), number(time.exchange_ms));
            vec![
                grouped(outlook.world_size),
                grouped(*global_rows),
                number(time.step_ms),
                number(time.input_ms),
                number(time.forward_ms),
                number(time.backward_ms),
                exchange,
                number(time.update_ms),
                number(time.host_to_device_ms),
                grouped(*samples_per_s as usize),
                percent(*scaling_efficiency),
                number(*epoch_s),
            ]
        },
    );
    text += &table(&titles, &rows.collect::<Vec<_>>());
    text += "\nMiB of a rank\n\n";
    let ranks: Vec<_> = possible().map(|(outlook, _)| grouped(outlook.world_size)).collect();
    let titles: Vec<&str> =
        ["<memory", "<where"].into_iter().chain(ranks.iter().map(String::as_str)).collect();
    let row = |name: &str, place: &str, cell: &dyn Fn(&RankMemory) -> String| {
        let cells = possible().map(|(_, estimate)| cell(&estimate.memory));
        [name.to_owned(), place.to_owned()].into_iter().chain(cells).collect::<Vec<_>>()
    };
    let mut rows = Vec::new();
    for kind in MemoryKind::ALL {
        let name = kind.name();
        let place = if kind.memory_use().is_some() { "device" } else { "host" };
        if possible().any(|(_, estimate)| estimate.memory.memory_bytes[name] > 0) {
            rows.push(row(name, place, &|memory| mib(memory.memory_bytes[name])));
        }
    }
    if hardware.is_gpu() {
        rows.push(row("libraries", "device", &|memory| mib(memory.library_bytes)));
    }
    rows.push(row("total", "device", &|memory| mib(memory.device_bytes)));
    rows.push(row("", "host", &|memory| mib(memory.host_bytes)));
    if let Some(capacity) = subject.capacity {
        let fits = |memory: &RankMemory| if memory.fits == Some(true) { "yes" } else { "no" }.to_owned();
        rows.push(row(&format!("fits into {}", mib(capacity)), "device", &fits));
    }
    text += &table(&titles, &rows);
    text.push('\n');
    for (outlook, estimate) in possible() {
        text += &remarks(outlook.world_size, estimate);
    }
    for outlook in outlooks {
        if let Some(error) = &outlook.impossible {
            let _ = writeln!(text, "{} ranks: impossible: {error}", grouped(outlook.world_size));
        }
    }
    text
}

/// Exchange, remedies and notes of one number of ranks.
fn remarks(n_ranks: usize, estimate: &Estimate) -> String {
    let ranks = if n_ranks == 1 { "1 rank".to_owned() } else { format!("{} ranks", grouped(n_ranks)) };
    let mut text = String::new();
    if n_ranks > 1 {
        let sent = mib(estimate.sent_bytes as usize);
        let _ = writeln!(text, "{ranks}: {}; each sends {sent} MiB per step", estimate.exchange);
    }
    for note in &estimate.notes {
        let _ = writeln!(text, "{ranks}: note: {note}");
    }
    for remedy in &estimate.memory.remedies {
        let sets: Vec<_> = remedy.set.iter().map(|set| format!("--set {set}")).collect();
        let fits = if remedy.fits { "fits" } else { "still does not fit" };
        let _ = writeln!(text, "{ranks}: {fits} with {}: {} MiB", sets.join(" "), mib(remedy.device_bytes));
    }
    if estimate.memory.fits == Some(false) && estimate.memory.remedies.is_empty() {
        let _ = writeln!(
            text,
            "{ranks}: no setting of batch, format or sharding makes it fit: use a smaller model or more memory"
        );
    }
    text
}
