//! Answers of a serving, against sessions that decide alone.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use sconce_nn::sampling::Sampling;
use sconce_nn::spec::{
    Backbone, Embedding, Head, HeadKind, Heads, HeadsKind, MlpConfig, Normalised, RecurrentConfig,
};
use sconce_nn::{Policy, Spec};
use sconce_serve::pass::Pass;
use sconce_serve::serving::{Answer, GaveUp, Options, Request, Serving, Work};
use sconce_serve::session::{self, Act, Call, Mode, Overrides, Session, decide_many};
use sconce_serve::{Deadline, Format, Model};
use sconce_tensor::{Error, Kind, Result};

/// Options with one worker, so that a test knows the content of each batch.
const ONE: Options =
    Options { max_batch: 64, max_queue: 1024, workers: 1, weights: Format::F32, lane: None };

fn gru() -> Backbone {
    Backbone::Gru(RecurrentConfig {
        hidden_size: 12,
        num_layers: 2,
        layer_norm: true,
        input_norm: true,
        dropout: 0.0,
        input_dropout: 0.0,
        ..Default::default()
    })
}

fn mlp() -> Backbone {
    Backbone::Mlp(MlpConfig {
        hidden_sizes: vec![16],
        layer_norm: false,
        residual: false,
        activation: Default::default(),
        dropout: 0.0,
        input_dropout: 0.0,
    })
}

fn model(backbone: Backbone, seed: u64) -> Arc<Model> {
    let head = |name: &str, kind| Head { name: name.into(), kind, hidden_size: 8 };
    let parts = vec![head("fire", HeadKind::Bernoulli(2)), head("move", HeadKind::Categorical(4))];
    let heads = Heads { kind: HeadsKind::Independent, parts, stream_size: 8, prior: false };
    let spec = Spec { embedding: Embedding::vector(3), backbone, heads, critic: None };
    let policy = Arc::new(Policy::init(&spec, seed).unwrap());
    Arc::new(Model::new(policy, Format::F32).unwrap())
}

fn session(model: &Arc<Model>, seed: u64) -> Session {
    let options = session::Options {
        mode: Mode::Carry,
        window_size: 4,
        sampling: Sampling::default(),
        seed,
        weights: Format::F32,
        lane: None,
        rollback: 0,
        frame_delay: None,
        project_out: None,
    };
    Session::over(model.clone(), options).unwrap()
}

fn frame(t: u64) -> [f32; 3] {
    let t = t as f32;
    [(t * 0.7).sin(), (t * 0.3).cos(), (t * 0.11).sin()]
}

enum Asked {
    Act { session: Box<Session>, raw: [f32; 3] },
    Forward(Pass),
}

/// A caller that gets its session back with the answer.
struct Caller {
    asked: Asked,
    overrides: Overrides,
    claimed: Arc<AtomicBool>,
    mine: bool,
    answers: mpsc::SyncSender<(Option<Session>, Result<Answer>)>,
}

type Answers = mpsc::Receiver<(Option<Session>, Result<Answer>)>;

impl Caller {
    fn new(asked: Asked) -> (Self, Answers) {
        let (answers, receiver) = mpsc::sync_channel(1);
        let overrides = Overrides::default();
        (Caller { asked, overrides, claimed: Arc::default(), mine: false, answers }, receiver)
    }

    fn acting(session: Session, t: u64) -> (Self, Answers) {
        Caller::new(Asked::Act { session: Box::new(session), raw: frame(t) })
    }
}

impl Request for Caller {
    type Caller = u64;

    fn work(&mut self) -> Result<Work<'_>> {
        let overrides = &self.overrides;
        Ok(match &mut self.asked {
            Asked::Act { session, raw } => Work::Act { session, raw, overrides, asked: false },
            Asked::Forward(pass) => Work::Forward(pass),
        })
    }

    fn claim(&mut self) -> bool {
        self.mine = self.mine || !self.claimed.swap(true, Ordering::AcqRel);
        self.mine
    }

    fn answer(self, result: Result<Answer>) {
        let session = match self.asked {
            Asked::Act { session, .. } => Some(*session),
            Asked::Forward(_) => None,
        };
        let _ = self.answers.send((session, result));
    }

    fn dismiss(self) {}
}

fn start(model: &Arc<Model>, options: Options) -> Arc<Serving<Caller>> {
    Serving::start(model.clone(), options).unwrap()
}

/// Submits a request and waits for its answer.
fn act(serving: &Serving<Caller>, caller: u64, own: Session, t: u64) -> (Session, Result<Act>) {
    let (request, answers) = Caller::acting(own, t);
    serving.submit(caller, None, request).unwrap();
    let (session, answer) = answers.recv().unwrap();
    let session = session.unwrap();
    let answer = answer.map(|_| {
        let (decision, frame) = session.last();
        Act { decision: decision.clone(), frame }
    });
    (session, answer)
}

/// Holds the next batch until the returned sender is dropped; the receiver gets a message when the batch has begun.
fn hold(serving: &Serving<Caller>) -> (mpsc::SyncSender<()>, mpsc::Receiver<()>) {
    let (gate, wait) = mpsc::sync_channel::<()>(1);
    let (begun, begins) = mpsc::sync_channel(1);
    serving.with_next_batch(move || {
        begun.send(()).unwrap();
        let _ = wait.recv();
    });
    (gate, begins)
}

#[test]
fn many_callers_get_the_same_answers_as_each_alone() {
    for (backbone, workers) in [(mlp(), 1), (gru(), 1), (gru(), 2)] {
        let model = model(backbone, 3);
        let serving = start(&model, Options { workers, max_batch: 5, ..ONE });
        thread::scope(|scope| {
            for caller in 0..9 {
                let (model, serving) = (&model, &serving);
                scope.spawn(move || {
                    let mut served = session(model, caller);
                    let mut alone = session(model, caller);
                    for t in 0..40 {
                        let answer;
                        (served, answer) = act(serving, caller, served, t + caller);
                        let want = alone.act(&frame(t + caller), &Overrides::default());
                        assert_eq!(answer.unwrap(), want.unwrap());
                    }
                });
            }
        });
        let report = serving.statistics().report();
        assert_eq!((report.counted.requests, report.counted.answered), (360, 360));
        assert_eq!(
            (report.counted.late, report.counted.cancelled, report.counted.panics),
            (0, 0, 0)
        );
        assert_eq!((report.queue_wait_us.count, report.latency_us.count), (360, 360));
        let batches = report.batch_size.count;
        assert_eq!((report.batch_size.mean.unwrap() * batches as f64).round(), 360.0);
        assert!(report.batch_size.max.unwrap() <= 5.0);
        assert_eq!(report.compute_us.count, batches);
        serving.stop();
    }
}

#[test]
fn all_queued_requests_become_one_batch() {
    let model = model(mlp(), 3);
    let serving = start(&model, ONE);
    let (gate, begins) = hold(&serving);
    let (first, first_answer) = Caller::acting(session(&model, 0), 0);
    serving.submit(0, None, first).unwrap();
    begins.recv().unwrap();
    let waiting: Vec<Answers> = (1..20)
        .map(|caller| {
            let (request, answers) = Caller::acting(session(&model, caller), 0);
            serving.submit(caller, None, request).unwrap();
            answers
        })
        .collect();
    assert_eq!(serving.waiting(), 19);
    drop(gate);
    assert!(first_answer.recv().unwrap().1.is_ok());
    waiting.iter().for_each(|answers| assert!(answers.recv().unwrap().1.is_ok()));
    let batch = serving.statistics().report().batch_size;
    assert_eq!((batch.count, batch.max), (2, Some(19.0)));
    serving.stop();
}

#[test]
fn a_full_queue_is_busy() {
    let model = model(mlp(), 3);
    let serving = start(&model, Options { max_queue: 1, ..ONE });
    let (gate, begins) = hold(&serving);
    let submit = |caller, deadline| {
        let (request, answers) = Caller::acting(session(&model, caller), 0);
        serving.submit(caller, deadline, request).map(|()| answers)
    };
    let first = submit(0, None).unwrap();
    begins.recv().unwrap();
    let second = submit(1, None).unwrap();
    assert_eq!(submit(2, None).err().unwrap().kind(), Kind::Busy);
    assert_eq!(serving.statistics().report().counted.busy, 1);
    drop(gate);
    for answers in [first, second] {
        assert!(answers.recv().unwrap().1.is_ok());
    }
    serving.stop();
}

#[test]
fn a_late_request_gets_its_waiting_time() {
    let model = model(gru(), 3);
    let serving = start(&model, ONE);
    let (gate, begins) = hold(&serving);
    let (first, first_answer) = Caller::acting(session(&model, 0), 0);
    serving.submit(0, None, first).unwrap();
    begins.recv().unwrap();
    let (late, late_answer) = Caller::acting(session(&model, 1), 0);
    serving.submit(1, Some(Deadline::after_ms(2)), late).unwrap();
    thread::sleep(Duration::from_millis(5));
    drop(gate);
    assert!(first_answer.recv().unwrap().1.is_ok());
    let (own, answer) = late_answer.recv().unwrap();
    let Err(Error::Deadline { deadline_ms: 2, waited_ms, .. }) = answer else {
        panic!("expected a deadline error");
    };
    assert!(waited_ms >= 5.0);
    assert_eq!(own.unwrap().info().frames, 0, "the session is unchanged");
    assert_eq!(serving.statistics().report().counted.late, 1);
    serving.stop();
}

#[test]
fn a_caller_that_gives_up_gets_no_answer() {
    let model = model(gru(), 3);
    let serving = start(&model, ONE);
    let (gate, begins) = hold(&serving);
    let submit = |caller| {
        let (request, answers) = Caller::acting(session(&model, caller), 0);
        let claimed = request.claimed.clone();
        serving.submit(caller, None, request).unwrap();
        (claimed, answers)
    };
    let give_up = |caller, claimed: &Arc<AtomicBool>, why| {
        assert!(!claimed.swap(true, Ordering::AcqRel));
        serving.give_up(caller, why, |request| Arc::ptr_eq(&request.claimed, claimed));
    };
    let (in_batch, no_answer) = submit(0);
    begins.recv().unwrap();
    let (waits, neither) = submit(1);
    give_up(1, &waits, GaveUp::Died);
    assert_eq!(serving.waiting(), 0);
    assert!(neither.recv().is_err(), "the request left the queue at once");
    give_up(0, &in_batch, GaveUp::Late);
    drop(gate);
    assert!(no_answer.recv().is_err());
    let counted = serving.statistics().report().counted;
    assert_eq!((counted.answered, counted.late, counted.cancelled), (0, 1, 1));
    serving.stop();
}

#[test]
fn a_panic_answers_its_batch_and_the_worker_continues() {
    let model = model(gru(), 3);
    let serving = start(&model, ONE);
    let (own, first) = act(&serving, 0, session(&model, 0), 0);
    serving.with_next_batch(|| panic!("on purpose"));
    let (own, answer) = act(&serving, 0, own, 1);
    let Err(Error::Panic { message }) = answer else { panic!("expected a panic error") };
    assert_eq!(message, "on purpose");
    assert_eq!(own.info().frames, 1);
    let (_, again) = act(&serving, 0, own, 1);
    let mut alone = session(&model, 0);
    assert_eq!(alone.act(&frame(0), &Overrides::default()).unwrap(), first.unwrap());
    assert_eq!(alone.act(&frame(1), &Overrides::default()).unwrap(), again.unwrap());
    assert_eq!(serving.statistics().report().counted.panics, 1);
    serving.stop();
}

#[test]
fn weights_change_between_two_batches_and_sessions_keep_their_memory() {
    let (old, new) = (model(gru(), 3), model(gru(), 4));
    let serving = start(&old, Options::default());
    let mut alone = session(&old, 7);
    let mut served = session(&old, 7);
    for t in 0..10 {
        if t == 5 {
            serving.swap(new.clone()).unwrap();
            alone.adopt(&new).unwrap();
        }
        let answer;
        (served, answer) = act(&serving, 0, served, t);
        assert_eq!(answer.unwrap(), alone.act(&frame(t), &Overrides::default()).unwrap());
    }
    assert_eq!(serving.swap(model(mlp(), 3)).unwrap_err().kind(), Kind::Mismatch);
    assert_eq!(serving.statistics().report().counted.swaps, 1);
    // Statistics of a normalisation are a part of the weights.
    let own = Normalised { mean: vec![0.5, 0.0, -1.0], deviation: vec![2.0, 0.1, 1.0] };
    let embedding = Embedding::normalised(own);
    let spec = Spec { embedding, ..new.policy().spec().clone() };
    let policy = Policy::from_weights(&spec, new.policy().weights().clone()).unwrap();
    let normalised = Arc::new(Model::new(Arc::new(policy), Format::F32).unwrap());
    serving.swap(normalised.clone()).unwrap();
    alone.adopt(&normalised).unwrap();
    let (_, answer) = act(&serving, 0, served, 10);
    assert_eq!(answer.unwrap(), alone.act(&frame(10), &Overrides::default()).unwrap());
    serving.swap(new).unwrap();
    serving.stop();
}

#[test]
fn passes_equal_those_of_the_policy_and_a_wrong_one_fails_alone() {
    let model = model(gru(), 3);
    let serving = start(&model, ONE);
    let (gate, begins) = hold(&serving);
    let (first, first_answer) = Caller::acting(session(&model, 0), 0);
    serving.submit(0, None, first).unwrap();
    begins.recv().unwrap();
    let rows = |games: u64, time: u64, from: u64| -> Vec<f32> {
        (0..games * time).flat_map(|i| frame(i + from)).collect()
    };
    let pass = |batch: u64, time: u64, from| Pass {
        rows: rows(batch, time, from),
        batch: batch as usize,
        time: time as usize,
        ..Pass::default()
    };
    let before = pass(2, 1, 50).run(model.policy()).unwrap();
    let state = Some(before.state.clone());
    let broken = Pass { rows: vec![f32::NAN; 3], ..pass(1, 1, 0) };
    let mut last = pass(2, 1, 9);
    last.look.return_sequences = false;
    let passes = [
        pass(1, 1, 0),
        broken,
        Pass { state, ..pass(2, 1, 20) },
        pass(3, 4, 30),
        pass(2, 4, 60),
        last,
        Pass { state: Some(vec![0.0; 3]), ..pass(1, 1, 0) },
    ];
    let answers: Vec<Answers> = passes
        .iter()
        .map(|pass| {
            let (request, answers) = Caller::new(Asked::Forward(pass.clone()));
            serving.submit(1, None, request).unwrap();
            answers
        })
        .collect();
    drop(gate);
    assert!(first_answer.recv().unwrap().1.is_ok());
    for (pass, answers) in passes.iter().zip(answers) {
        let (_, answer) = answers.recv().unwrap();
        match (answer, pass.run(model.policy())) {
            (Ok(Answer::Forward(got)), Ok(want)) => {
                for (got, want) in [(&got.logits, &want.logits), (&got.state, &want.state)] {
                    assert_eq!(got.len(), want.len());
                    assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-5));
                }
            }
            (Err(got), Err(want)) => assert_eq!(got.to_string(), want.to_string()),
            _ => panic!("the serving and the policy differ"),
        }
    }
    serving.stop();
}

#[test]
fn draining_finishes_earlier_requests_and_stopping_cancels_them() {
    for drains in [true, false] {
        let model = model(mlp(), 3);
        let serving = start(&model, ONE);
        let (gate, begins) = hold(&serving);
        let submit = |caller| {
            let (request, answers) = Caller::acting(session(&model, caller), 0);
            serving.submit(caller, None, request).map(|()| answers)
        };
        let first = submit(0).unwrap();
        begins.recv().unwrap();
        let second = submit(1).unwrap();
        let (drained, told) = mpsc::sync_channel(1);
        match drains {
            true => serving.drain(move || drained.send(()).unwrap()),
            false => serving.stop(),
        }
        assert_eq!(submit(2).err().unwrap().kind(), Kind::Unavailable);
        assert!(serving.check_open().is_err());
        if !drains {
            // The worker still holds its batch.
            let (_, cancelled) = second.recv().unwrap();
            assert_eq!(cancelled.err().unwrap().kind(), Kind::Cancelled);
            drop(gate);
            assert!(first.recv().unwrap().1.is_ok());
            continue;
        }
        assert!(told.try_recv().is_err());
        drop(gate);
        told.recv().unwrap();
        for answers in [first, second] {
            assert!(answers.try_recv().unwrap().1.is_ok(), "answered before the callback");
        }
        serving.stop();
    }
}

#[test]
fn options_out_of_bounds_are_refused() {
    let model = model(mlp(), 3);
    for options in [
        Options { max_batch: 0, ..ONE },
        Options { max_queue: 0, ..ONE },
        Options { workers: 0, ..ONE },
    ] {
        let refused = Serving::<Caller>::start(model.clone(), options).err().unwrap();
        assert_eq!(refused.kind(), Kind::OutOfRange);
    }
}

/// Callers give up, batches panic, weights change, and the serving ends; all outcomes are counted.
#[test]
fn each_request_has_exactly_one_outcome() {
    let models = [model(gru(), 3), model(gru(), 4)];
    let options = Options { workers: 2, max_queue: 6, max_batch: 4, ..ONE };
    let serving = start(&models[0], options);
    let (answered, gave_up, busy, late) =
        (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let ended = Mutex::new(false);
    let begin = Instant::now();
    thread::scope(|scope| {
        for caller in 0..8_u64 {
            let (models, serving) = (&models, &serving);
            let (answered, gave_up, busy, late) = (&answered, &gave_up, &busy, &late);
            scope.spawn(move || {
                let mut own = Some(session(&models[0], caller));
                for t in 0..400 {
                    let session = own.take().unwrap_or_else(|| session(&models[0], caller));
                    let (request, answers) = Caller::acting(session, t);
                    let claimed = request.claimed.clone();
                    let deadline = ((t + caller) % 5 == 0).then(|| Deadline::after_ms(0));
                    if let Err(refusal) = serving.submit(caller, deadline, request) {
                        assert_eq!(refusal.kind(), Kind::Busy);
                        busy.fetch_add(1, Ordering::Relaxed);
                        thread::yield_now();
                        continue;
                    }
                    if (t * 3 + caller) % 7 == 0 && !claimed.swap(true, Ordering::AcqRel) {
                        serving
                            .give_up(caller, GaveUp::Died, |r| Arc::ptr_eq(&r.claimed, &claimed));
                        gave_up.fetch_add(1, Ordering::Relaxed);
                        assert!(answers.recv().is_err());
                        continue;
                    }
                    let (session, answer) = answers.recv().unwrap();
                    own = session;
                    let counter = match answer {
                        Ok(_) => answered,
                        Err(Error::Panic { .. }) => answered,
                        Err(Error::Deadline { .. }) => late,
                        Err(other) => panic!("{other}"),
                    };
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| {
            let mut turn = 0;
            while !*ended.lock().unwrap() {
                turn += 1;
                serving.swap(models[turn % 2].clone()).unwrap();
                serving.with_next_batch(move || assert!(turn % 8 != 0, "on purpose"));
                thread::sleep(Duration::from_micros(200));
            }
        });
        scope.spawn(|| {
            let settled = || {
                let all = [&answered, &gave_up, &busy, &late];
                all.iter().map(|count| count.load(Ordering::Relaxed)).sum::<usize>()
            };
            while settled() < 8 * 400 && begin.elapsed() < Duration::from_secs(60) {
                thread::sleep(Duration::from_millis(1));
            }
            *ended.lock().unwrap() = true;
        });
    });
    let counted = serving.statistics().report().counted;
    let read = |count: &AtomicUsize| count.load(Ordering::Relaxed) as u64;
    assert_eq!(read(&answered) + read(&gave_up) + read(&late) + read(&busy), 8 * 400);
    assert_eq!(counted.requests, read(&answered) + read(&gave_up) + read(&late));
    assert_eq!((counted.answered, counted.late), (read(&answered), read(&late)));
    assert_eq!((counted.cancelled, counted.busy), (read(&gave_up), read(&busy)));
    assert_eq!(serving.waiting(), 0);
    serving.stop();
}

#[test]
fn a_limit_of_the_batch_holds_while_the_serving_runs_and_changes_no_answer() {
    let model = model(gru(), 3);
    let serving = start(&model, Options { max_batch: 8, ..ONE });
    let mut choices = vec![];
    for (limit, batches) in [(8, 1), (3, 3)] {
        serving.limit(limit).unwrap();
        assert_eq!(serving.max_batch(), limit);
        let (gate, begins) = hold(&serving);
        let (first, _answer) = Caller::acting(session(&model, 99), 0);
        serving.submit(99, None, first).unwrap();
        begins.recv().unwrap();
        serving.batches();
        let before = serving.statistics().report().batch_size.count;
        let answers: Vec<_> = (0..8)
            .map(|caller| {
                let mut own = session(&model, caller);
                // The first decision reads a window, which is computed alone.
                own.act(&frame(0), &Overrides::default()).unwrap();
                let (request, answer) = Caller::acting(own, caller);
                serving.submit(caller, None, request).unwrap();
                answer
            })
            .collect();
        drop(gate);
        let decided = |answer: Answers| {
            let (session, result) = answer.recv().unwrap();
            assert!(result.is_ok());
            session.unwrap().last().0.clone()
        };
        choices.push(answers.into_iter().map(decided).collect::<Vec<_>>());
        let after = serving.statistics().report().batch_size.count;
        // The batch in front of these may be counted among them.
        assert!((batches..=batches + 1).contains(&(after - before)), "{after} - {before}");
        assert_eq!(serving.batches().largest, limit as u64);
    }
    assert_eq!(choices[0], choices[1]);
    for wrong in [0, 9] {
        let error = serving.limit(wrong).unwrap_err();
        assert_eq!(error.kind(), Kind::OutOfRange);
        assert!(error.to_string().starts_with("max_batch: "), "{error}");
    }
    assert_eq!(serving.max_batch(), 3);
    serving.stop();
}

#[test]
fn a_drain_waits_for_steps_on_callers_threads_and_admits_no_more() {
    let model = model(mlp(), 1);
    let serving = start(&model, Options { lane: Some(session::Lane::Inline), ..ONE });
    let mut session = session(&model, 1);
    let overrides = Overrides::default();
    let (release, held) = mpsc::sync_channel::<()>(1);
    serving.with_next_batch(move || held.recv().unwrap());
    let (drained, told) = mpsc::sync_channel(1);
    thread::scope(|scope| {
        let acting = scope.spawn(|| serving.act(&mut session, &frame(0), &overrides));
        while serving.load() == 0 {
            thread::yield_now();
        }
        serving.drain(move || drained.send(()).unwrap());
        assert!(told.recv_timeout(Duration::from_millis(20)).is_err());
        release.send(()).unwrap();
        told.recv().unwrap();
        assert_eq!(acting.join().unwrap().unwrap(), Some(()));
    });
    assert_eq!(session.last().1, 1);
    let after = serving.act(&mut session, &frame(1), &overrides);
    assert_eq!(after.map_err(|e| e.kind()), Err(Kind::Unavailable));
    serving.stop();
}

#[test]
fn long_decisions_are_left_to_a_worker_in_the_inline_lane() {
    let (old, new) = (model(gru(), 1), model(gru(), 2));
    let serving = start(&old, Options { lane: Some(session::Lane::Inline), ..ONE });
    let mut session = session(&old, 1);
    let plain = Overrides::default();
    let act =
        |session: &mut Session, overrides| serving.act(session, &frame(0), overrides).unwrap();
    // The first decision reads a window.
    assert_eq!(act(&mut session, &plain), None);
    session.act(&frame(0), &plain).unwrap();
    assert_eq!(act(&mut session, &plain), Some(()));
    let directions = Overrides { project_out: Some(vec![1.0; 12]), ..Overrides::default() };
    assert_eq!(act(&mut session, &directions), None);
    assert!(!serving.ask(&mut session, &frame(0), &directions).unwrap());
    // A session adopts other weights on a worker.
    serving.swap(new.clone()).unwrap();
    assert_eq!(act(&mut session, &plain), None);
    assert!(session.adopt(&new).unwrap());
    assert_eq!(act(&mut session, &plain), Some(()));
    assert_eq!(session.last().1, 3);
    serving.stop();
}

#[test]
fn a_session_reads_its_frame_again_after_the_weights_changed() {
    let (old, new) = (model(gru(), 1), model(gru(), 2));
    let overrides = Overrides::default();
    let sessions = || {
        let mut session = session(&old, 7);
        session.act(&frame(0), &overrides).unwrap();
        session
    };
    let decide = |session: &mut Session, asked| {
        let call = Call { session, raw: &frame(1), overrides: &overrides, asked, outcome: Ok(()) };
        let mut calls = [call];
        decide_many(&mut calls);
        let [call] = calls;
        call.outcome.unwrap();
        call.session.commit();
        let (decision, frame) = call.session.last();
        (decision.clone(), frame)
    };
    let (mut here, mut there) = (sessions(), sessions());
    here.ask(&frame(1), &overrides).unwrap();
    assert_eq!(decide(&mut here, true), decide(&mut there, false));
    let (mut here, mut there) = (sessions(), sessions());
    here.ask(&frame(1), &overrides).unwrap();
    let asked = !here.adopt(&new).unwrap();
    assert!(!asked && there.adopt(&new).unwrap());
    assert_eq!(decide(&mut here, asked), decide(&mut there, false));
}
