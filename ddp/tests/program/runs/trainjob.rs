//! The status of a Kubeflow TrainJob: posted with its token while a run trains, which a server that refuses does not disturb.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;

use serde_json::Value;

use crate::common::{run_ok, single, temp_dir, write};

/// Answers each post with `status`; returns its address and, once a post of 100 % has come, the requests: headers and body.
fn server(status: &'static str) -> (String, std::thread::JoinHandle<Vec<(String, Value)>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/apis/status", listener.local_addr().unwrap());
    let serve = move || {
        let mut requests = Vec::new();
        loop {
            let (mut stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut head, mut len) = (String::new(), 0);
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                if let Some(n) = line.to_lowercase().strip_prefix("content-length:") {
                    len = n.trim().parse().unwrap();
                }
                if line.trim().is_empty() {
                    break;
                }
                head += &line;
            }
            let mut body = vec![0; len];
            reader.read_exact(&mut body).unwrap();
            write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
            let body: Value = serde_json::from_slice(&body).unwrap();
            let is_last = body["trainerStatus"]["progressPercentage"] == 100;
            requests.push((head, body));
            if is_last {
                return requests;
            }
        }
    };
    (url, std::thread::spawn(serve))
}

#[test]
fn a_trainjob_sees_the_progress_of_its_run() {
    if std::process::Command::new("curl").arg("--version").output().is_err() {
        println!("skipped: needs curl");
        return;
    }
    let folder = temp_dir();
    let token = write(folder.path(), "token", "one\"two\n");
    for (name, status, warnings) in [("accepted", "200 OK", 0), ("refused", "401 Unauthorized", 1)] {
        let (url, requests) = server(status);
        let out = folder.path().join(name);
        let mut command = single(&["train", "--out", out.to_str().unwrap(), "--set", "train.epochs=1"]);
        command.env("KUBEFLOW_TRAINER_SERVER_URL", url).env("KUBEFLOW_TRAINER_SERVER_TOKEN", &token);
        command.env("KUBEFLOW_TRAINER_SERVER_CA_CERT", &token);
        let outcome = run_ok(command);
        assert_eq!(
            outcome.stderr.matches("TrainJob can't be posted").count(),
            warnings,
            "{}",
            outcome.stderr
        );
        let requests = requests.join().unwrap();
        let (head, body) = requests.last().unwrap();
        assert!(
            head.starts_with("POST /apis/status ") && head.contains("Authorization: Bearer one\"two\r\n"),
            "{head}"
        );
        let metrics = body["trainerStatus"]["metrics"].as_array().unwrap();
        let accuracy = metrics.iter().find(|metric| metric["name"] == "eval_accuracy").unwrap();
        assert!(accuracy["value"].as_str().unwrap().parse::<f64>().unwrap() > 0.5, "{body}");
        assert!(body["trainerStatus"]["lastUpdatedTime"].as_str().unwrap().ends_with('Z'), "{body}");
    }
}
