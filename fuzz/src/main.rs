//! Fuzzes the named targets, or all of them, and prints a table of the outcomes. The exit status is 1 if an
//! input broke something.

use std::process::ExitCode;
use std::sync::Mutex;
use std::thread;

use sconce_fuzz::runner::{HEADING, Job, Source, run};
use sconce_fuzz::targets::{ALL, Target};

const USAGE: &str = "sconce-fuzz [--count N] [--seed N] [--kept] [TARGET..]
  --count N    inputs of each target (5000)
  --seed N     seed of the mutants (1)
  --show N     writes input N of the one target to standard output
  --kept       runs only the inputs that once broke something
  --covered N  fuzzes for N seconds with coverage feedback; needs a build by fuzz/long";

struct Asked {
    count: u64,
    source: Source,
    #[cfg_attr(not(feature = "coverage"), allow(dead_code))]
    seconds: u64,
    targets: Vec<&'static Target>,
}

fn parse(arguments: &[String]) -> Result<Asked, String> {
    let (mut count, mut seed, mut kept, mut seconds, mut targets) = (5000, 1, false, 0, vec![]);
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut number = || -> Result<u64, String> {
            let number = words.next().and_then(|word| word.parse().ok());
            number.ok_or_else(|| format!("{word} needs a number"))
        };
        match word.as_str() {
            "--count" => count = number()?,
            "--seed" => seed = number()?,
            "--covered" => seconds = number()?,
            "--kept" => kept = true,
            name => targets.push(Target::find(name).ok_or_else(|| {
                let names = ALL.iter().map(|target| target.name).collect::<Vec<_>>().join(", ");
                format!("{USAGE}\n\n{name} is not a target; the targets are {names}")
            })?),
        }
    }
    if targets.is_empty() {
        targets = ALL.iter().collect();
    }
    let source = match (kept, seconds) {
        (true, _) => Source::Kept,
        (false, 0) => Source::Mutants { seed },
        #[cfg(feature = "coverage")]
        (false, _) => Source::Covered { seed },
        #[cfg(not(feature = "coverage"))]
        (false, _) => return Err("--covered needs a build by fuzz/long".into()),
    };
    Ok(Asked { count, source, seconds, targets })
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(input) = shown(&arguments) {
        use std::io::Write;
        return ExitCode::from(u8::from(std::io::stdout().write_all(&input).is_err()));
    }
    if let Some(("--child", rest)) =
        arguments.split_first().map(|(first, rest)| (first.as_str(), rest))
    {
        return match Job::parse(rest) {
            Some(job) => {
                sconce_fuzz::child(job);
                ExitCode::SUCCESS
            }
            None => ExitCode::FAILURE,
        };
    }
    match parse(&arguments) {
        Ok(asked) => attack(asked),
        Err(text) => {
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}

/// Makes input N for `--show N [--seed N] TARGET`.
fn shown(arguments: &[String]) -> Option<Vec<u8>> {
    let (first, rest) = arguments.split_first()?;
    let (index, rest) = rest.split_first().filter(|_| first == "--show")?;
    let asked = parse(rest).ok()?;
    let (target, Source::Mutants { seed }) = (asked.targets.first()?, asked.source) else {
        return None;
    };
    Some(target.input(&(target.seeds)(), seed, index.parse().ok()?))
}

/// Runs targets in parallel, as many at once as there are processors.
fn attack(asked: Asked) -> ExitCode {
    let program = std::env::current_exe().expect("the path of this program");
    let threads = thread::available_parallelism().map_or(1, usize::from).min(asked.targets.len());
    let (next, broken) = (Mutex::new(asked.targets.iter()), Mutex::new(0));
    println!("{HEADING}");
    let work = || {
        while let Some(target) = { next.lock().expect("no panic").next() } {
            let range = match asked.source {
                Source::Mutants { .. } => 0..asked.count,
                Source::Kept => 0..u64::MAX,
                #[cfg(feature = "coverage")]
                Source::Covered { .. } => 0..sconce_fuzz::coverage::now() + asked.seconds,
            };
            let job = Job { target, source: asked.source, range };
            let tally = run(&program, job, &|line| println!("{:<11} {line}", target.name));
            let mut broken = broken.lock().expect("no panic");
            println!("{}", tally.row(target.name));
            for one in &tally.broken {
                let path =
                    one.path.as_ref().map_or("not kept".into(), |path| path.display().to_string());
                println!("{:11}  broke: #{}: {} ({path})", "", one.index, one.reason);
            }
            *broken += tally.broken.len();
        }
    };
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let broken = *broken.lock().expect("no panic");
    if broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
