//! The command line of each launcher.

use super::*;

fn host(name: &str, slots: usize) -> Host {
    Host { name: name.to_owned(), slots: Some(slots) }
}

fn open_mpi(major: u32) -> Starter {
    Starter::OpenMpi { program: "mpirun", major, prefix: None }
}

/// The command line as one string, and the environment.
fn line(starter: &Starter, n_ranks: usize, hosts: &[Host], machine: &Machine) -> (String, Vec<String>) {
    let args = ["train", "run.toml"].map(OsString::from);
    let job = JobSpec { n_ranks, hosts, binary: Path::new("/bin/ddp-train"), args: &args };
    let agent = Agent::new(|_| Some("agent -q".to_owned()));
    let CommandLine { program, args, env } = starter.command_line(&job, machine, &agent);
    let words: Vec<String> =
        [program].into_iter().chain(args).map(|word| word.into_string().unwrap()).collect();
    (words.join(" "), env.iter().map(|(name, value)| format!("{name}={value}")).collect())
}

#[test]
fn programs_are_told_by_their_version() {
    let of = |version: &str| Starter::for_version("mpirun", version, None);
    assert_eq!(of("mpirun (Open MPI) 4.1.4\n\nReport bugs to").unwrap(), open_mpi(4));
    assert_eq!(of("mpirun (Open MPI) 5.0.7\n").unwrap(), open_mpi(5));
    assert_eq!(of("mpirun (OpenRTE) 2.1.1").unwrap(), open_mpi(2));
    assert_eq!(of("prterun (PRRTE) 3.0.2").unwrap(), open_mpi(5));
    for version in
        ["HYDRA build details:\n    Version: 4.0.2", "Intel(R) MPI Library for Linux* OS, Version 2021.9"]
    {
        assert_eq!(of(version).unwrap(), Starter::Mpich { program: "mpirun" });
    }
    let error = ddp_kernels::hint::with_hint(&of("some other mpirun\nmore").unwrap_err());
    assert!(error.contains("names neither Open MPI nor MPICH: `some other mpirun`\n"), "{error}");
}

#[test]
fn a_launcher_without_version_is_reported() {
    let error = Starter::for_version("mpirun", "\n", None).unwrap_err().to_string();
    assert!(error.ends_with("names neither Open MPI nor MPICH: it printed nothing"), "{error}");
}

#[test]
fn one_rank_needs_no_launcher() {
    assert_eq!(Starter::find(1, true, LauncherChoice::Auto, &Machine::default()).unwrap(), Starter::Alone);
    let (line, env) = line(&Starter::Alone, 1, &[], &Machine::default());
    assert_eq!((line.as_str(), env.len()), ("/bin/ddp-train train run.toml", 0));
}

#[test]
fn this_program_starts_ranks_of_this_host_only() {
    let find = |is_local, choice| Starter::find(4, is_local, choice, &Machine::default());
    assert_eq!(find(true, LauncherChoice::Environment).unwrap(), Starter::Itself);
    assert!(matches!(find(false, LauncherChoice::Environment), Err(LaunchError::OtherHosts)));
    if cfg!(not(feature = "mpi")) {
        assert_eq!(find(true, LauncherChoice::Auto).unwrap(), Starter::Itself);
    }
}

#[test]
fn ranks_of_one_host_use_no_network() {
    let machine = Machine { has_remote_shell: true, ..Machine::default() };
    let (text, env) = line(&open_mpi(4), 2, &[], &machine);
    assert_eq!(text, "mpirun -n 2 --bind-to none --oversubscribe /bin/ddp-train train run.toml");
    assert_eq!(env, ["OMPI_MCA_btl=self,vader", "OMPI_MCA_pml=ob1"]);
    let (text, env) = line(&open_mpi(5), 2, &[], &machine);
    assert_eq!(text, "mpirun -n 2 --bind-to none --oversubscribe /bin/ddp-train train run.toml");
    assert_eq!(env, ["OMPI_MCA_btl=self,sm", "OMPI_MCA_pml=ob1"]);
}

/// The hosts of a Slurm job, on which mpirun starts its daemons by srun.
#[test]
fn ranks_of_a_slurm_job_may_use_the_network() {
    let machine = Machine { is_in_slurm: true, ..Machine::default() };
    for major in [4, 5] {
        assert_eq!(line(&open_mpi(major), 16, &[], &machine).1, [""; 0]);
    }
}

#[test]
fn open_mpi_is_told_of_containers() {
    let machine = Machine { is_root: true, has_seccomp: true, ..Machine::default() };
    let (_, env) = line(&open_mpi(4), 2, &[], &machine);
    for set in [
        "OMPI_ALLOW_RUN_AS_ROOT=1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
        "OMPI_MCA_btl_vader_single_copy_mechanism=none",
        "OMPI_MCA_plm=isolated",
    ] {
        assert!(env.contains(&set.to_owned()), "no {set} in {env:?}");
    }
}

#[test]
fn other_hosts_are_reached_by_the_agent() {
    let hosts = [host("a", 8), Host { name: "b".to_owned(), slots: None }];
    let machine = Machine { forwarded: vec!["NCCL_DEBUG".to_owned()], ..Machine::default() };
    let starter = Starter::OpenMpi { program: "mpirun", major: 4, prefix: Some("/opt/mpi".into()) };
    let (text, env) = line(&starter, 9, &hosts, &machine);
    assert_eq!(
        text,
        "mpirun -n 9 --bind-to none --host a:8,b:1 --map-by slot --prefix /opt/mpi -x NCCL_DEBUG \
         /bin/ddp-train train run.toml"
    );
    assert_eq!(env, ["OMPI_MCA_plm_rsh_agent=agent -q"]);
    assert_eq!(line(&open_mpi(5), 9, &hosts, &machine).1, ["PRTE_MCA_plm_ssh_agent=agent -q"]);
}

#[test]
fn other_hosts_get_what_networks_and_stores_need() {
    let is_forwarded = |name: &str| is_forwarded(name, "OWN_NAME  OTHER");
    for name in ["NCCL_DEBUG", "FI_PROVIDER", "AWS_REGION", "HF_TOKEN", "https_proxy", "NO_PROXY", "OTHER"] {
        assert!(is_forwarded(name), "{name}");
    }
    for name in ["PATH", "HOME", "OWN", "OMPI_MCA_btl", ""] {
        assert!(!is_forwarded(name), "{name}");
    }
}

#[test]
fn mpich_and_slurm() {
    let hosts = [host("a", 2), host("b", 2)];
    let machine = Machine::default();
    let mpich = Starter::Mpich { program: "mpiexec" };
    assert_eq!(line(&mpich, 2, &[], &machine).0, "mpiexec -n 2 /bin/ddp-train train run.toml");
    assert_eq!(
        line(&mpich, 4, &hosts, &machine).0,
        "mpiexec -n 4 -hosts a:2,b:2 /bin/ddp-train train run.toml"
    );
    assert_eq!(
        line(&mpich, 2, &hosts[..1], &machine).0,
        "mpiexec -n 2 -hosts a /bin/ddp-train train run.toml"
    );
    assert_eq!(
        line(&Starter::Srun, 4, &[], &machine).0,
        "srun --mpi=pmix --kill-on-bad-exit=1 --ntasks=4 /bin/ddp-train train run.toml"
    );
    assert_eq!(
        line(&Starter::Srun, 4, &hosts, &machine).0,
        "srun --mpi=pmix --kill-on-bad-exit=1 --ntasks=4 --nodes=2 --nodelist=a,b /bin/ddp-train train run.toml"
    );
    let machine = Machine { cpus_per_task: Some("8".to_owned()), ..machine };
    let (text, _) = line(&Starter::Srun, 4, &[], &machine);
    assert!(text.contains("--ntasks=4 --cpus-per-task=8 /bin/ddp-train"), "{text}");
    // One task with all cores, of which the ranks have their shares.
    let machine = Machine { n_tasks: Some(1), ..machine };
    assert!(!line(&Starter::Srun, 4, &[], &machine).0.contains("--cpus-per-task"));
}
