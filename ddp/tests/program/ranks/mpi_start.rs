//! The start of MPI below the program.

use crate::common::{ranks, run_ok};

/// A choice made after threads have started has no effect.
#[test]
fn ranks_of_one_host_look_for_no_fabric() {
    let opened = |choice: Option<&str>| {
        let mut command = ranks(2, &["describe", "builtin:digits", "--device", "cpu"]);
        command.env_remove("OMPI_MCA_pml").env("OMPI_MCA_pml_base_verbose", "20");
        command.envs(choice.map(|choice| ("OMPI_MCA_pml", choice)));
        run_ok(command).stderr
    };
    let by_default = opened(None);
    // Only Open MPI prints this.
    if by_default.contains("selected ob1") {
        assert!(!by_default.contains("select: component monitoring"), "{by_default}");
        let of_user = opened(Some("^cm"));
        assert!(of_user.contains("select: component monitoring"), "{of_user}");
    }
}
