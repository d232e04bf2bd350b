//! Searches: strategies that solve environments, archives that fill, and searches that are resumed.
#![allow(clippy::disallowed_methods)]

use std::sync::atomic::{AtomicUsize, Ordering};

use sconce_env::{EnvOptions, spec};
use sconce_evolve::{
    Archive, ArchiveOptions, Batch, Crossover, EmitterOptions, Episodes, Measure, Method, Network,
    Population, PopulationOptions, Progress, Ranking, RunOptions, Search, SearchOptions, Selection,
    Source, SpaceOptions, Storage, StrategyOptions, Variation,
};
use sconce_nn::spec::{Backbone, Embedding, Heads, HeadsKind, MlpActivation, MlpConfig, Spec};
use sconce_tensor::{Error, Kind, pool};

fn policies(env: &str, hidden: usize) -> Spec {
    let env = spec(&EnvOptions { env: env.into(), ..EnvOptions::default() }).unwrap();
    let mut heads = Heads::of_parts(&env.inputs, HeadsKind::Independent);
    heads.parts.iter_mut().for_each(|part| part.hidden_size = 0);
    let mlp = MlpConfig {
        hidden_sizes: vec![hidden],
        layer_norm: false,
        residual: false,
        activation: MlpActivation::Tanh,
        dropout: 0.0,
        input_dropout: 0.0,
    };
    Spec {
        embedding: Embedding::vector(env.observation_size),
        backbone: Backbone::Mlp(mlp),
        heads,
        critic: None,
    }
}

fn episodes(env: &str, episodes: u32, measures: &[Measure]) -> Episodes {
    let env = EnvOptions { env: env.into(), seed: 7, ..EnvOptions::default() };
    Episodes { env, episodes, same_starts: true, measures: measures.to_vec() }
}

fn options(source: Source, batch: usize) -> SearchOptions {
    let storage = Storage::F32;
    SearchOptions { source, batch, storage, sigma: 1.0, seed: 1, new_starts: false }
}

fn strategy(method: Method, population: usize, sigma: f64) -> Source {
    let population = Some(population);
    Source::Strategy(StrategyOptions { method, population, sigma, learning_rate: 0.05, seed: 2 })
}

fn elites() -> Source {
    let variation = Variation { iso_sigma: 0.1, crossover: Crossover::Line(0.2), bounds: None };
    Source::Elites { variation, selection: Selection::Uniform }
}

fn archive(size: usize, learning_rate: f64, threshold_min: Option<f64>) -> Archive {
    let ranges = vec![(-2.4, 2.4), (0.0, 1.0)];
    Archive::new(&ArchiveOptions {
        space: SpaceOptions::Grid { dimensions: vec![20, 20], ranges },
        solution_size: size,
        learning_rate,
        threshold_min,
        offset: 0.0,
    })
    .unwrap()
}

/// Final position of the cart, and the share of pushes to the right.
const CART: [Measure; 2] = [Measure::Final(0), Measure::Input(0)];

#[test]
fn strategies_solve_cart_pole() {
    for (method, sigma) in [
        (Method::OpenAiEs, 0.1),
        (Method::Snes, 0.5),
        (Method::SepCmaEs, 0.5),
        (Method::CmaEs, 0.5),
    ] {
        let spec = policies("cart_pole", 8);
        let options =
            SearchOptions { new_starts: true, ..options(strategy(method, 64, sigma), 64) };
        let mut search =
            Search::new(&spec, &options, &episodes("cart_pole", 4, &[]), None).unwrap();
        let mut mean = 0.0;
        for _ in 0..100 {
            mean = search.run(None, 1, &|| false).unwrap().mean;
            if mean >= 475.0 {
                break;
            }
        }
        assert!(mean >= 475.0, "{method:?}: {mean}");
    }
}

#[test]
fn a_strategy_swings_the_pendulum_up() {
    let spec = policies("pendulum", 8);
    let source = Source::Strategy(StrategyOptions {
        method: Method::SepCmaEs,
        population: Some(64),
        sigma: 0.5,
        learning_rate: 0.05,
        seed: 3,
    });
    let options = SearchOptions { new_starts: true, ..options(source, 64) };
    let mut search = Search::new(&spec, &options, &episodes("pendulum", 8, &[]), None).unwrap();
    let mut best = f64::NEG_INFINITY;
    for _ in 0..200 {
        best = best.max(search.run(None, 1, &|| false).unwrap().mean);
        if best >= -250.0 {
            break;
        }
    }
    assert!(best >= -250.0, "{best}");
}

fn fill(source: Source, learning_rate: f64, threshold_min: Option<f64>) -> (Archive, Progress) {
    let spec = policies("cart_pole", 4);
    let mut archive = archive(Network::of(&spec).unwrap().size(), learning_rate, threshold_min);
    let episodes = episodes("cart_pole", 1, &CART);
    let mut search = Search::new(&spec, &options(source, 200), &episodes, Some(&archive)).unwrap();
    let progress = search.run(Some(&mut archive), 30, &|| false).unwrap();
    (archive, progress)
}

#[test]
fn every_source_fills_an_archive_with_what_its_elites_do() {
    let tournament = Selection::Tournament { size: 4, novelty: 0.5, nearest: 5 };
    let variation = Variation { iso_sigma: 0.1, crossover: Crossover::Line(0.2), bounds: None };
    let emitters = |method, ranking| {
        Source::Emitters(EmitterOptions { count: 5, method, sigma: 0.5, ranking })
    };
    for (source, learning_rate, threshold_min) in [
        (elites(), 1.0, None),
        (Source::Elites { variation, selection: tournament }, 1.0, None),
        (emitters(Method::CmaEs, Ranking::TwoStage), 1.0, None),
        (emitters(Method::SepCmaEs, Ranking::Improvement), 0.1, Some(0.0)),
    ] {
        let (archive, progress) = fill(source.clone(), learning_rate, threshold_min);
        let stats = archive.stats();
        assert!(stats.elites >= 20, "{source:?}: {}", stats.elites);
        assert_eq!((progress.generation, progress.evaluations), (30, 6000));
        assert!(progress.added >= stats.elites as u64);
        assert_eq!(progress.best.unwrap(), stats.best.unwrap());
        // An elite, played again, does what it claims.
        let spec = policies("cart_pole", 4);
        let made = sconce_evolve::PopulationOptions {
            count: stats.elites,
            storage: Storage::F32,
            sigma: 0.0,
            seed: 0,
        };
        let mut again = sconce_evolve::Population::new(&spec, &made, None).unwrap();
        again.write(0, &archive.elites().solutions).unwrap();
        let played = again.episodes(&episodes("cart_pole", 1, &CART)).unwrap();
        assert_eq!(played.returns, archive.elites().objectives);
        assert_eq!(played.measures, archive.elites().measures);
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    pool::set_threads(1).unwrap();
    let one = fill(elites(), 1.0, None);
    pool::set_threads(2).unwrap();
    let two = fill(elites(), 1.0, None);
    assert_eq!(one.0, two.0);
}

#[test]
fn a_resumed_search_equals_one_that_was_never_interrupted() {
    let emitters = EmitterOptions {
        count: 2,
        method: Method::SepCmaEs,
        sigma: 0.5,
        ranking: Ranking::TwoStage,
    };
    for source in [elites(), Source::Emitters(emitters)] {
        let spec = policies("cart_pole", 4);
        let size = Network::of(&spec).unwrap().size();
        let (options, episodes) = (options(source, 100), episodes("cart_pole", 1, &CART));
        let new =
            |archive: &Archive| Search::new(&spec, &options, &episodes, Some(archive)).unwrap();
        let mut whole = archive(size, 1.0, None);
        let mut search = new(&whole);
        search.run(Some(&mut whole), 20, &|| false).unwrap();

        let folder = tempfile::tempdir().unwrap();
        let mut part = archive(size, 1.0, None);
        let mut first = new(&part);
        first.run(Some(&mut part), 8, &|| false).unwrap();
        first.save(folder.path(), Some(&part)).unwrap();
        let mut part = Search::archive(folder.path()).unwrap().unwrap();
        let mut second = new(&part);
        second.resume(folder.path()).unwrap();
        let progress = second.run(Some(&mut part), 12, &|| false).unwrap();
        assert_eq!((progress.generation, progress.evaluations), (20, 2000));
        assert_eq!(part, whole);
    }
}

#[test]
fn a_state_is_whole_or_the_one_before_stays() {
    let spec = policies("cart_pole", 4);
    let size = Network::of(&spec).unwrap().size();
    let (options, episodes) = (options(elites(), 50), episodes("cart_pole", 1, &CART));
    let mut own = archive(size, 1.0, None);
    let mut search = Search::new(&spec, &options, &episodes, Some(&own)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let run = RunOptions { generations: 5, save_seconds: 0.0 };
    let events = std::cell::RefCell::new(vec![]);
    let tell = |event| events.borrow_mut().push(event);
    let report = search.execute(Some(&mut own), folder.path(), &run, tell, &|| false).unwrap();
    assert_eq!((report.progress.generation, report.stopped), (5, "done"));
    let last = *events.borrow().last().unwrap();
    assert_eq!((last.step, last.elites, last.left_s), (5, Some(own.stats().elites), 0.0));
    assert!((report.progress.stages.shares().iter().sum::<f64>() - 1.0).abs() < 1e-9);
    assert_eq!(Search::archive(folder.path()).unwrap().unwrap(), own);
    // The slot that the next save writes is damaged, as by a kill: the state stays.
    let names = ["archive-a.safetensors", "archive-b.safetensors"];
    let index = std::fs::read_to_string(folder.path().join("search.json")).unwrap();
    let other = names[usize::from(index.contains("\"slot\":\"a\""))];
    std::fs::write(folder.path().join(other), "cut").unwrap();
    assert_eq!(Search::archive(folder.path()).unwrap().unwrap(), own);
    // A damaged index is named, and a save mends it.
    std::fs::write(folder.path().join("search.json"), "{").unwrap();
    assert_eq!(search.resume(folder.path()).map_err(|e| e.kind()), Err(Kind::Corrupt));
    search.save(folder.path(), Some(&own)).unwrap();
    assert_eq!(Search::archive(folder.path()).unwrap().unwrap(), own);
    let stopped = search.execute(
        Some(&mut own),
        folder.path(),
        &RunOptions { generations: 9, ..run },
        |_| {},
        &|| true,
    );
    assert_eq!(stopped.unwrap().stopped, "stopped");
}

#[test]
fn one_search_at_a_time_uses_a_folder() {
    let spec = policies("cart_pole", 4);
    let mut own = archive(Network::of(&spec).unwrap().size(), 1.0, None);
    let episodes = episodes("cart_pole", 1, &CART);
    let mut search = Search::new(&spec, &options(elites(), 50), &episodes, Some(&own)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let held = Search::lock(folder.path()).unwrap();
    let kind = |result: Result<(), Error>| result.map_err(|e| e.kind()).err();
    assert_eq!(kind(search.save(folder.path(), Some(&own))), Some(Kind::Busy));
    let run = RunOptions { generations: 2, save_seconds: 0.0 };
    let mut execute = || search.execute(Some(&mut own), folder.path(), &run, |_| {}, &|| false);
    assert_eq!(kind(execute().map(drop)), Some(Kind::Busy));
    drop(held);
    assert_eq!(kind(execute().map(drop)), None);
    // The state of a newer version is not overwritten.
    let index = folder.path().join("search.json");
    let newer = std::fs::read_to_string(&index).unwrap().replace("\"version\":1", "\"version\":2");
    std::fs::write(&index, &newer).unwrap();
    assert_eq!(kind(search.save(folder.path(), Some(&own))), Some(Kind::Mismatch));
    assert_eq!(std::fs::read_to_string(&index).unwrap(), newer);
}

#[test]
fn a_search_that_was_stopped_amid_a_generation_goes_on_to_the_same_end() {
    let spec = policies("cart_pole", 4);
    let size = Network::of(&spec).unwrap().size();
    let sources = [elites(), strategy(Method::Snes, 40, 0.5)];
    for source in sources {
        let made = || {
            let episodes = episodes("cart_pole", 2, &CART);
            let own = archive(size, 1.0, None);
            (Search::new(&spec, &options(source.clone(), 40), &episodes, Some(&own)).unwrap(), own)
        };
        let (mut whole, mut want) = made();
        whole.run(Some(&mut want), 6, &|| false).unwrap();
        let (mut search, mut got) = made();
        // The stop comes after more and more questions: before the first generation, and amid each one.
        let (mut at, mut is_amid) = (0, false);
        while at < 6 {
            let (asked, most) = (AtomicUsize::new(0), if at == 0 { 0 } else { 12 });
            let stop = || asked.fetch_add(1, Ordering::Relaxed) >= most;
            let progress = search.run(Some(&mut got), 1, &stop).unwrap();
            assert_eq!(progress.generation, at);
            is_amid |= asked.load(Ordering::Relaxed) > 1;
            at = search.run(Some(&mut got), 1, &|| false).unwrap().generation;
        }
        assert!(is_amid);
        assert_eq!(got, want);
        assert_eq!(search.mean(), whole.mean());
    }
}

#[test]
fn long_calls_end_when_they_are_stopped() {
    let spec = policies("pendulum", 4);
    let options = PopulationOptions { count: 100, storage: Storage::F32, sigma: 0.5, seed: 1 };
    let population = Population::new(&spec, &options, None).unwrap();
    // 1.3 billion decisions without the stop.
    let env = EnvOptions { env: "pendulum".into(), ..EnvOptions::default() };
    let long = Episodes { env, episodes: 1 << 16, same_starts: true, measures: vec![] };
    let asked = AtomicUsize::new(0);
    let stop = || asked.fetch_add(1, Ordering::Relaxed) >= 100;
    let stopped = population.episodes_until(&long, &stop);
    assert_eq!(stopped.map(drop).map_err(|e| e.kind()), Err(Kind::Cancelled));
    let voronoi = ArchiveOptions {
        space: SpaceOptions::Voronoi {
            cells: 100_000,
            ranges: vec![(0.0, 1.0); 6],
            samples: 1 << 20,
            seed: 1,
        },
        solution_size: 1,
        learning_rate: 1.0,
        threshold_min: None,
        offset: 0.0,
    };
    let stopped = Archive::new_until(&voronoi, &stop);
    assert_eq!(stopped.map(drop).map_err(|e| e.kind()), Err(Kind::Cancelled));
    let mut own = archive(1, 1.0, None);
    let (solutions, objectives, measures) = (&[0.0][..], &[0.0][..], &[0.0, 0.0][..]);
    own.add(Batch { solutions, objectives, measures }).unwrap();
    let stopped = own.novelty_until(&[0.0; 2], 1, &stop);
    assert_eq!(stopped.map_err(|e| e.kind()), Err(Kind::Cancelled));
}

#[test]
fn invalid_searches_are_named() {
    let spec = policies("cart_pole", 4);
    let size = Network::of(&spec).unwrap().size();
    let made = archive(size, 1.0, None);
    let said = |options: &SearchOptions, episodes: &Episodes, archive: Option<&Archive>| {
        let made = Search::new(&spec, options, episodes, archive);
        made.err().map(|e| e.to_string()).unwrap_or_default()
    };
    let own = options(elites(), 100);
    let with = episodes("cart_pole", 1, &CART);
    assert_eq!(said(&own, &with, Some(&made)), "");
    let missing = "archive: expected one, for elites and emitters, got none";
    assert_eq!(said(&own, &with, None), missing);
    let few = episodes("cart_pole", 1, &CART[..1]);
    assert_eq!(said(&own, &few, Some(&made)), "measures: expected 2, got 1");
    let narrow = archive(size - 1, 1.0, None);
    let wanted = format!("numbers of a solution of the archive: expected {size}, got {}", size - 1);
    assert_eq!(said(&own, &with, Some(&narrow)), wanted);
    assert_eq!(said(&options(elites(), 0), &with, Some(&made)), "batch: 0 is outside 1..1048576");
    let emitters = |count| {
        let (method, ranking) = (Method::Snes, Ranking::TwoStage);
        options(Source::Emitters(EmitterOptions { count, method, sigma: 0.5, ranking }), 100)
    };
    let wanted = "batch: expected a multiple of 3 emitters, got 100";
    assert_eq!(said(&emitters(3), &with, Some(&made)), wanted);
    assert_eq!(said(&emitters(0), &with, Some(&made)), "emitters (count): 0 is outside 1..1024");
    let wide = Variation { iso_sigma: 0.1, crossover: Crossover::Uniform(2.0), bounds: None };
    let selection = Selection::Tournament { size: 0, novelty: 0.0, nearest: 1 };
    for (source, name) in [
        (Source::Elites { variation: wide, selection: Selection::Uniform }, "crossover (uniform)"),
        (
            Source::Elites {
                variation: Variation { crossover: Crossover::Holographic, ..wide },
                selection,
            },
            "tournament size",
        ),
    ] {
        let said = said(&options(source, 100), &with, Some(&made));
        assert!(said.starts_with(name), "{said}");
    }
    let folder = tempfile::tempdir().unwrap();
    let mut search = Search::new(&spec, &own, &with, Some(&made)).unwrap();
    assert_eq!(search.resume(folder.path()).map_err(|e| e.kind()), Err(Kind::NotFound));
    search.save(folder.path(), Some(&made)).unwrap();
    let mut other = Search::new(&spec, &emitters(2), &with, Some(&made)).unwrap();
    let said = other.resume(folder.path()).map_err(|e| e.to_string());
    assert_eq!(said, Err("strategies of the saved search: expected 2, got 0".into()));
}
