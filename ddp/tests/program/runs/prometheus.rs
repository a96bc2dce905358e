//! Metrics of a running job at `--metrics-addr`, which one job at a time can have.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{children, ranks, run, single, start, temp_dir};

/// Status line and body of the answer to a request; empty while nobody listens.
fn get(port: u16, request: &str) -> String {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return String::new() };
    let mut text = String::new();
    let _ = write!(stream, "{request} HTTP/1.1\r\nhost: here\r\n\r\n")
        .and_then(|()| stream.read_to_string(&mut text).map(drop));
    text
}

fn value(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

#[test]
fn a_running_job_serves_its_metrics() {
    let folder = temp_dir();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (port_text, out) = (port.to_string(), folder.path().join("run"));
    let settings =
        ["--set", "train.epochs=1000000", "--set", "log.every_steps=1", "--set", "train.eval_every_steps=5"];
    let args = |out| [&["train", "--out", out, "--metrics-addr", &port_text][..], &settings].concat();
    let job = start(ranks(2, &args(out.to_str().unwrap())));
    let started = Instant::now();
    let text = loop {
        let text = get(port, "GET /metrics");
        if text.contains("ddp_train_evaluation{") && text.contains("ddp_train_step_seconds{") {
            break text;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "no metrics within a minute: {text}");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(text.starts_with("HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\n"), "{text}");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((now - value(&text, "ddp_train_last_step_timestamp_seconds").unwrap()).abs() < 60.0, "{text}");
    let step = value(&text, "ddp_train_step").unwrap();
    assert!(step >= 5.0 && value(&text, "ddp_train_rows_total").unwrap() > 0.0, "{text}");
    for name in ["loss", "gradient_norm", "learning_rate", "rows_per_second", "left_seconds"] {
        assert!(
            value(&text, &format!("ddp_train_{name}")).is_some_and(|value| value > 0.0),
            "{name}: {text}"
        );
    }
    let accuracy = value(&text, "ddp_train_evaluation{metric=\"accuracy\"}").unwrap();
    assert!((0.0..=1.0).contains(&accuracy), "{text}");
    // Every metric is announced once, before its values.
    for line in text.lines().filter(|line| line.starts_with("ddp_train_")) {
        let name = line.split([' ', '{']).next().unwrap();
        let (before, _) = text.split_once(line).unwrap();
        assert_eq!(before.matches(&format!("# TYPE {name} ")).count(), 1, "{name}: {text}");
    }
    assert!(text.contains(",run=\"run\",world_size=\"2\"} 1\n"), "{text}");
    for path in ["healthz", "readyz"] {
        assert!(get(port, &format!("GET /{path}")).starts_with("HTTP/1.1 200 OK"), "{path}");
    }
    assert!(get(port, "GET /").starts_with("HTTP/1.1 404"));
    assert!(get(port, "POST /metrics").starts_with("HTTP/1.1 405"));

    let other = folder.path().join("other");
    let outcome = run(single(&args(other.to_str().unwrap())));
    assert_eq!(outcome.status.code(), Some(78), "{}", outcome.stderr);
    for part in ["--metrics-addr 127.0.0.1:", "in use", "hint: another process may have this port"] {
        assert!(outcome.stderr.contains(part), "{part}: {}", outcome.stderr);
    }
    let rank = children(job.pid())[0];
    let status = Command::new("sh").args(["-c", &format!("kill -USR1 {rank}")]).status().unwrap();
    assert!(status.success());
    assert_eq!(job.wait().status.code(), Some(85));
    assert_eq!(get(port, "GET /metrics"), "");
}
