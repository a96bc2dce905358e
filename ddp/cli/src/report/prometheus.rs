//! Metrics of a running job for Prometheus, at `--metrics-addr` of rank 0.
//!
//! Source: Prometheus, "Exposition formats", text format 0.0.4.

use std::fmt::Write as _;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tracing::info;

use super::live::{Live, TIME};

/// Time in which a client sends its request and takes the answer, however slowly.
const CLIENT: Duration = Duration::from_secs(2);
/// Most clients at a time; others are turned away.
const MAX_CLIENTS: usize = 64;
/// Stack of the thread of a client.
const STACK_BYTES: usize = 256 << 10;
/// Most bytes of a request.
const MAX_REQUEST: usize = 8192;

/// Parses `ADDRESS:PORT`, `:PORT` for all interfaces, or `PORT` of the loopback interface.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse() {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    if let Some(Ok(port)) = text.strip_prefix(':').map(str::parse) {
        return Ok((Ipv4Addr::UNSPECIFIED, port).into());
    }
    text.parse().map_err(|_| {
        "expected PORT for this host alone, :PORT for all interfaces, or an IP address with its port, \
         such as 10.0.0.5:9400"
            .to_owned()
    })
}

/// Labels of `ddp_train_info`, which tells runs apart.
#[derive(Debug, Clone)]
pub(crate) struct RunInfo(String);

impl RunInfo {
    /// Labels of a run of this name, which needs no escapes.
    pub(crate) fn new(name: &str, world_size: usize) -> Self {
        let version = env!("CARGO_PKG_VERSION");
        RunInfo(format!("{{version=\"{version}\",run=\"{name}\",world_size=\"{world_size}\"}}"))
    }
}

/// A thread that answers requests until this value is dropped, each client on a thread of its own, so that none keeps others or the end of
/// the run waiting.
#[derive(Debug)]
pub(super) struct Server {
    address: SocketAddr,
    ends: Arc<AtomicBool>,
}

impl Server {
    /// Serves the metrics of `run` at `address`.
    ///
    /// # Errors
    /// The address is in use or not one of this host.
    pub(super) fn start(run: &Arc<Live>, address: SocketAddr, info: RunInfo) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let ends = Arc::new(AtomicBool::new(false));
        let (run, ended) = (Arc::clone(run), Arc::clone(&ends));
        let n_clients = Arc::new(AtomicUsize::new(0));
        let serve = move || {
            for client in listener.incoming() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(client) = client else {
                    // Such as a process without free descriptors.
                    thread::sleep(Duration::from_millis(100));
                    continue;
                };
                if n_clients.load(Ordering::Relaxed) >= MAX_CLIENTS {
                    continue;
                }
                n_clients.fetch_add(1, Ordering::Relaxed);
                let (run, info, n) = (Arc::clone(&run), info.clone(), Arc::clone(&n_clients));
                let serve_one = move || {
                    // A client that leaves early is no concern of the run.
                    let _ = answer(client, &run, &info);
                    n.fetch_sub(1, Ordering::Relaxed);
                };
                let client = thread::Builder::new().name("metrics".to_owned()).stack_size(STACK_BYTES);
                if client.spawn(serve_one).is_err() {
                    n_clients.fetch_sub(1, Ordering::Relaxed);
                }
            }
        };
        thread::Builder::new().name("metrics".to_owned()).spawn(serve)?;
        info!("metrics for Prometheus at http://{address}/metrics");
        Ok(Server { address, ends })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        // The thread waits for a client; nobody waits for the thread.
        let _ = TcpStream::connect_timeout(&self.address, CLIENT);
    }
}

fn answer(mut client: TcpStream, run: &Live, info: &RunInfo) -> io::Result<()> {
    let deadline = Instant::now() + CLIENT;
    let left = || match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::Error::from(io::ErrorKind::TimedOut)),
        left => Ok(Some(left)),
    };
    let (mut request, mut piece) = (Vec::new(), [0; 1024]);
    while !request.windows(4).any(|bytes| bytes == b"\r\n\r\n") && request.len() < MAX_REQUEST {
        client.set_read_timeout(left()?)?;
        match client.read(&mut piece)? {
            0 => break,
            n => request.extend_from_slice(&piece[..n]),
        }
    }
    let line = String::from_utf8_lossy(&request);
    let mut words = line.split_whitespace();
    let (status, body) = match (words.next(), words.next()) {
        (Some("GET"), Some("/metrics")) => ("200 OK", text(run, info)),
        // The process answers; a run is ready when it trains.
        (Some("GET"), Some("/healthz")) => ("200 OK", "ok\n".to_owned()),
        (Some("GET"), Some("/readyz")) if run.last_step_s().is_some() => ("200 OK", "ok\n".to_owned()),
        (Some("GET"), Some("/readyz")) => ("503 Service Unavailable", "no step yet\n".to_owned()),
        (Some("GET"), _) => ("404 Not Found", "there are /metrics, /healthz and /readyz\n".to_owned()),
        _ => ("405 Method Not Allowed", "GET /metrics\n".to_owned()),
    };
    client.set_write_timeout(left()?)?;
    write!(
        client,
        "HTTP/1.1 {status}\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// The metrics of a run. Names that begin alike are one metric with a label: `time.forward` is `step_seconds{part="forward"}`.
fn text(run: &Live, info: &RunInfo) -> String {
    let mut text = String::new();
    let mut add = |name: &str, kind: &str, help: &str, values: &[(String, f64)]| {
        if values.is_empty() {
            return;
        }
        let _ = writeln!(text, "# HELP ddp_train_{name} {help}\n# TYPE ddp_train_{name} {kind}");
        for (labels, value) in values {
            let value =
                if value.is_finite() { value.to_string() } else { prometheus_name(*value).to_owned() };
            let _ = writeln!(text, "ddp_train_{name}{labels} {value}");
        }
    };
    let metrics = run.metrics();
    let plain =
        |value: Option<f64>| value.map(|value| (String::new(), value)).into_iter().collect::<Vec<_>>();
    let of = |name: &str| plain(metrics.get(name).copied());
    let labeled = |prefix: &str, label: &str| -> Vec<_> {
        let named = metrics.iter().filter_map(|(name, value)| Some((name.strip_prefix(prefix)?, *value)));
        named.map(|(name, value)| (format!("{{{label}=\"{name}\"}}"), value)).collect()
    };
    add("info", "gauge", "Version, name and ranks of the run.", &[(info.0.clone(), 1.0)]);
    add(
        "last_step_timestamp_seconds",
        "gauge",
        "End of the last step, since 1970.",
        &plain(run.last_step_s()),
    );
    add(
        "rows_total",
        "counter",
        "Rows used by all ranks since the run began.",
        &plain(Some(run.n_done() as f64)),
    );
    add("done_ratio", "gauge", "Share of the rows of the run that are used.", &plain(Some(run.done())));
    add("left_seconds", "gauge", "Estimated time until the end of the run.", &plain(run.left_s()));
    add("step", "gauge", "Last logged step.", &of("step"));
    add("epoch", "gauge", "Epoch of the last logged step, from 1.", &of("epoch"));
    add("loss", "gauge", "Loss of the last logged step.", &of("loss"));
    add("learning_rate", "gauge", "Learning rate of the last logged step.", &of("lr"));
    add("gradient_norm", "gauge", "Norm of the gradient of the last logged step.", &of("grad_norm"));
    add("rows_per_second", "gauge", "Rows of all ranks per second.", &of("samples_per_s"));
    add("step_seconds", "gauge", "Time of a step of rank 0 by what it is spent on.", &labeled(TIME, "part"));
    add("evaluation", "gauge", "Metrics of the last evaluation.", &labeled("eval_", "metric"));
    text
}

fn prometheus_name(value: f64) -> &'static str {
    match value {
        f64::INFINITY => "+Inf",
        f64::NEG_INFINITY => "-Inf",
        _ => "NaN",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_of_this_host() {
        let of = |text: &str| address(text).map(|address| address.to_string());
        assert_eq!(of("9400").unwrap(), "127.0.0.1:9400");
        assert_eq!(of(":9400").unwrap(), "0.0.0.0:9400");
        assert_eq!(of("[::1]:9400").unwrap(), "[::1]:9400");
        for bad in ["", "localhost", "70000", "10.0.0.5"] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn metrics_have_help_type_and_value() {
        let run = Live::new(100..1000);
        let info = RunInfo::new("digits", 2);
        assert!(!text(&run, &info).contains("last_step"), "{}", text(&run, &info));
        run.advance(400);
        run.set([("loss", 0.5), ("time.forward", 2e-3), ("eval_accuracy", f64::NAN)]);
        let text = text(&run, &info);
        for part in [
            "# TYPE ddp_train_info gauge\nddp_train_info{version=\"",
            ",run=\"digits\",world_size=\"2\"} 1\n",
            "# HELP ddp_train_loss Loss of the last logged step.\n# TYPE ddp_train_loss gauge\nddp_train_loss 0.5\n",
            "# TYPE ddp_train_rows_total counter\nddp_train_rows_total 500\n",
            "ddp_train_done_ratio 0.5\n",
            "ddp_train_step_seconds{part=\"forward\"} 0.002\n",
            "ddp_train_evaluation{metric=\"accuracy\"} NaN\n",
            "ddp_train_last_step_timestamp_seconds 1",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("learning_rate"), "{text}");
    }

    /// Neither clients that send nothing nor one that sends a byte at a time keeps others or the end waiting.
    #[test]
    fn slow_clients_keep_nobody_waiting() {
        let server =
            Server::start(&Arc::new(Live::new(0..10)), "127.0.0.1:0".parse().unwrap(), RunInfo::new("a", 1));
        let server = server.unwrap();
        let connect = || TcpStream::connect(server.address).unwrap();
        let silent: Vec<TcpStream> = (0..20).map(|_| connect()).collect();
        let mut slow = connect();
        let drips = thread::spawn(move || {
            let began = Instant::now();
            while slow.write_all(b"x").is_ok() && began.elapsed() < 5 * CLIENT {
                thread::sleep(Duration::from_millis(50));
            }
            began.elapsed()
        });
        let mut client = connect();
        client.set_read_timeout(Some(CLIENT / 2)).unwrap();
        client.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").unwrap();
        let mut got = String::new();
        client.read_to_string(&mut got).unwrap();
        assert!(got.starts_with("HTTP/1.1 200 OK"), "{got}");
        assert!(drips.join().unwrap() < 3 * CLIENT, "a client has {CLIENT:?} in all");
        let began = Instant::now();
        let more = connect();
        drop(server);
        assert!(began.elapsed() < CLIENT, "{:?}", began.elapsed());
        drop((silent, more));
    }
}
