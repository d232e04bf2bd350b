//! Inputs that once broke something, and the seeds of all targets.

use std::path::Path;

use sconce_fuzz::runner::{Job, Source, kept, run};
use sconce_fuzz::targets::ALL;

#[test]
fn inputs_that_once_broke_something_are_accepted_or_refused() {
    let program = Path::new(env!("CARGO_BIN_EXE_sconce-fuzz"));
    for target in &ALL {
        let files = kept(target);
        let job = Job { target, source: Source::Kept, range: 0..files.len() as u64 };
        let tally = run(program, job, &|_| ());
        let name = |index: u64| files.get(index as usize).map(|path| path.display().to_string());
        let broken: Vec<_> =
            tally.broken.iter().map(|broken| (name(broken.index), &broken.reason)).collect();
        assert!(broken.is_empty(), "{}: {broken:#?}", target.name);
        assert_eq!(tally.inputs, files.len() as u64, "{}", target.name);
    }
}

#[test]
fn seeds_are_accepted_and_some_mutants_are_refused() {
    let program = Path::new(env!("CARGO_BIN_EXE_sconce-fuzz"));
    for target in &ALL {
        let job = Job { target, source: Source::Mutants { seed: 2 }, range: 0..100 };
        let tally = run(program, job, &|_| ());
        assert!(tally.broken.is_empty(), "{}: {:#?}", target.name, tally.broken);
        assert!(tally.accepted > 0 && tally.inputs == 100, "{}: {tally:?}", target.name);
        // A reader of gradients returns the lines before the first damaged one, so it refuses nothing.
        let refuses = target.name != "gradients";
        assert!(!refuses || !tally.refused.is_empty(), "{}: {tally:?}", target.name);
    }
}
