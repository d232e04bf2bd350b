//! Streams of batches: `Sconce.Loader`.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;

use rustler::{Encoder, Env, LocalPid, Monitor, Reference, Resource, ResourceArc, Term};
use sconce_data::{
    Ahead, Batch, Corpus, Draws, Filter, Flow, LeftOut, Loader, LoaderOptions, Reader, Sampler,
    SamplerOptions,
};
use sconce_nn::spec::Embedding;
use sconce_tensor::pool::Class;
use sconce_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::border::{
    Answer, Data, Handle, Handled, REPLIES, Reply, call, decode, guard, labels_to, perform,
};
use crate::corpus::CorpusHandle;

/// A stream of batches and the process that it belongs to.
///
/// 1. The stream has a thread, which opens it, waits for requests and answers each by message with the next batch. That
///    thread owns the loader, whose threads make the batches.
/// 2. Only one request is in flight: the next one before its answer is `:busy`.
/// 3. Closing ends that thread and with it the loader. The stream closes by a call, by the death of the process that
///    opened it, or with the last reference to the handle. Closing does not wait for the threads to end. A request in
///    flight is answered `:cancelled`.
pub(crate) struct LoaderHandle {
    requests: Mutex<Option<SyncSender<Reply>>>,
    /// Whether a request is in flight.
    asked: Arc<AtomicBool>,
    cancelled: Arc<AtomicBool>,
    /// The depth of the loader; `None` without prefetch.
    ahead: Option<Arc<Ahead>>,
}

#[rustler::resource_impl]
impl Resource for LoaderHandle {
    fn down<'a>(&'a self, _env: Env<'a>, _pid: LocalPid, _monitor: Monitor) {
        self.close();
    }
}

impl Handled for LoaderHandle {
    const NOUN: &'static str = "stream";
}

impl LoaderHandle {
    fn close(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
        drop(self.requests.lock().unwrap_or_else(|e| e.into_inner()).take());
    }
}

impl Drop for LoaderHandle {
    fn drop(&mut self) {
        self.close();
    }
}

/// A batch whose memory Elixir's binaries share without a copy; each binary keeps the whole batch alive.
pub(crate) struct BatchHandle(Batch);

#[rustler::resource_impl]
impl Resource for BatchHandle {}

/// Options of a stream; names and meanings are those of `Sconce.Loader`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StreamOptions {
    batch_size: usize,
    start: u64,
    burn_in: usize,
    frame_delay: usize,
    queue_depth: usize,
    neutral_weight: f32,
    transition_weight: f32,
    filter: Filter,
    sampler: SamplerOptions,
    loader: LoaderOptions,
    embedding: Option<Embedding>,
}

impl StreamOptions {
    fn validate(&self) -> Result<()> {
        let frames = self.batch_size.saturating_mul(self.sampler.window);
        if frames > MAX_FRAMES {
            return Err(Error::out_of_range(
                "batch_size x window_size",
                frames as f64,
                1.0,
                MAX_FRAMES as f64,
            ));
        }
        if self.start > MAX_START {
            let (start, most) = (self.start as f64, MAX_START as f64);
            return Err(Error::out_of_range("start", start, 0.0, most));
        }
        if self.burn_in >= self.sampler.window {
            let (burn_in, most) =
                (self.burn_in as f64, self.sampler.window.saturating_sub(1) as f64);
            return Err(Error::out_of_range("burn_in", burn_in, 0.0, most));
        }
        self.loader.validate()
    }

    fn sampler(&self, corpus: &Corpus) -> Result<(Sampler, LeftOut)> {
        self.validate()?;
        self.sampler.check_weights(corpus.games().len())?;
        let games: Vec<usize> = (0..corpus.games().len()).collect();
        let (views, left_out) = self.filter.select(corpus.views(&games)?)?;
        let schema = corpus.schema();
        let embedding = self.embedding.clone().unwrap_or_else(|| schema.embedding());
        let reader = Reader {
            queue_depth: self.queue_depth,
            neutral_weight: self.neutral_weight,
            transition_weight: self.transition_weight,
            ..Reader::new(embedding, schema.heads(), self.frame_delay)
        };
        let bytes = reader.bytes(self.batch_size, self.sampler.window);
        if bytes > MAX_BYTES {
            let what = "a batch (batch_size x window_size x numbers of a frame)";
            return Err(Error::out_of_memory(what, bytes));
        }
        Ok((Sampler::new(views, reader, self.sampler.clone())?, left_out))
    }
}

/// Maximum number of frames in a batch.
const MAX_FRAMES: usize = 1 << 20;
/// Maximum size of a batch in bytes.
const MAX_BYTES: u64 = 2 << 30;
/// Largest first step. Steps counted from there do not overflow 64 bits.
const MAX_START: u64 = (1 << 48) - 1;

/// Sizes of a stream.
#[derive(Serialize)]
struct StreamInfo {
    /// Windows of an epoch.
    windows: u64,
    steps_per_epoch: u64,
    /// Number of views left out because they are shorter than a window.
    short_views: usize,
    /// Numbers of views that the filters left out, by reason.
    left_out: LeftOut,
    /// Bytes of a batch.
    batch_bytes: u64,
}

impl StreamInfo {
    fn new(sampler: &Sampler, left_out: LeftOut, batch_size: usize) -> Self {
        StreamInfo {
            windows: sampler.windows(),
            steps_per_epoch: sampler.steps_per_epoch(batch_size),
            short_views: sampler.short_views(),
            left_out,
            batch_bytes: sampler.reader().bytes(batch_size, sampler.options().window),
        }
    }
}

/// Number of open streams in this VM.
pub(crate) static STREAMS: AtomicUsize = AtomicUsize::new(0);

/// Runs `work` on a thread of its own, because `work` maps and scans games; the pool is for short work. The reply is
/// made after the thread has started, and answers if it is dropped.
fn on_a_thread(
    env: Env,
    reference: Reference,
    work: impl FnOnce(Reply) + Send + 'static,
) -> Result<()> {
    let (sender, receiver) = sync_channel::<Reply>(REPLIES);
    let thread = thread::Builder::new().name("sconce-stream".into());
    let spawned = thread.spawn(move || {
        Class::Background.enter();
        if let Ok(reply) = receiver.recv() {
            work(reply);
        }
    });
    spawned.map_err(|e| Error::Unavailable { what: "a thread".into(), reason: e.to_string() })?;
    drop(sender.send(Reply::new(env, "stream", reference)));
    Ok(())
}

/// Opens a stream. Sends `{:ok, {handle, info}}` by message.
#[rustler::nif]
fn loader_open<'a>(
    env: Env<'a>,
    corpus: Handle<CorpusHandle>,
    reference: Reference<'a>,
    options: Term<'a>,
) -> Term<'a> {
    perform(env, "stream", || {
        let (corpus, options) = (corpus.get()?, decode::<StreamOptions>(options)?);
        let pid = env.pid();
        on_a_thread(env, reference, move |reply| match guard(|| open(&corpus, options, &pid)) {
            Ok((opened, served)) => {
                drop(corpus);
                STREAMS.fetch_add(1, Ordering::AcqRel);
                reply.send(Ok(opened));
                served.serve();
                STREAMS.fetch_sub(1, Ordering::AcqRel);
            }
            Err(error) => reply.send::<Opened>(Err(error)),
        })
    })
}

fn open(corpus: &CorpusHandle, options: StreamOptions, pid: &LocalPid) -> Result<(Opened, Served)> {
    let (sampler, left_out) = options.sampler(&corpus.0)?;
    let info = StreamInfo::new(&sampler, left_out, options.batch_size);
    let words = sampler.reader().heads.are_words();
    let StreamOptions { batch_size, start, .. } = options;
    let burn_in = sampler.options().silent(options.burn_in);
    let draws = Draws::Windows { sampler: sampler.into(), batch_size, burn_in };
    let name = corpus.0.dir().display().to_string();
    let loader = Loader::start(name, draws, &options.loader, start)?;
    let (sender, requests) = sync_channel(REQUESTS);
    let (asked, cancelled) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
    let handle = ResourceArc::new(LoaderHandle {
        requests: Mutex::new(Some(sender)),
        asked: asked.clone(),
        cancelled: cancelled.clone(),
        ahead: loader.ahead(),
    });
    match handle.monitor(None, pid) {
        Some(_) => {
            Ok((Opened { handle, info }, Served { loader, requests, asked, cancelled, words }))
        }
        None => Err(Error::Cancelled),
    }
}

/// Capacity of the channel to a stream's thread: `asked` admits one request at a time, and the next is `:busy`.
const REQUESTS: usize = 1;

/// The data of a stream's thread.
struct Served {
    loader: Loader<Draws>,
    requests: Receiver<Reply>,
    asked: Arc<AtomicBool>,
    cancelled: Arc<AtomicBool>,
    /// Whether labels are bits and classes.
    words: bool,
}

impl Served {
    /// Answers requests until the stream is closed.
    fn serve(self) {
        let Served { mut loader, requests, asked, cancelled, words } = self;
        for reply in requests {
            let step = loader.step();
            let drawn = guard(|| loader.next(&cancelled));
            // Cleared before the answer is sent: its receiver may ask again at once.
            asked.store(false, Ordering::Release);
            let flow = loader.flow();
            reply.send(drawn.map(|drawn| Loaded { step, batch: drawn.batch, flow, words }));
        }
    }
}

struct Opened {
    handle: ResourceArc<LoaderHandle>,
    info: StreamInfo,
}

impl Answer for Opened {
    fn into_term(self, env: Env<'_>) -> Result<Term<'_>> {
        Ok((self.handle, Data(self.info).into_term(env)?).encode(env))
    }
}

/// Sends the sizes of a stream with these options by message, without opening it.
#[rustler::nif]
fn loader_info<'a>(
    env: Env<'a>,
    corpus: Handle<CorpusHandle>,
    reference: Reference<'a>,
    options: Term<'a>,
) -> Term<'a> {
    perform(env, "stream", || {
        let (corpus, options) = (corpus.get()?, decode::<StreamOptions>(options)?);
        on_a_thread(env, reference, move |reply| {
            reply.run(|| {
                let (sampler, left_out) = options.sampler(&corpus.0)?;
                Ok(Data(StreamInfo::new(&sampler, left_out, options.batch_size)))
            });
        })
    })
}

/// Asks for the next batch, which comes by message.
#[rustler::nif]
fn loader_next<'a>(
    env: Env<'a>,
    loader: Handle<LoaderHandle>,
    reference: Reference<'a>,
) -> Term<'a> {
    perform(env, "stream", || {
        let loader = loader.get()?;
        let requests = loader.requests.lock().unwrap_or_else(|e| e.into_inner());
        let requests = requests.as_ref().ok_or_else(|| Error::not_found("stream (closed)"))?;
        if loader.asked.swap(true, Ordering::AcqRel) {
            return Err(Error::Busy { what: "stream".into() });
        }
        requests.try_send(Reply::new(env, "stream", reference)).map_err(|refused| match refused {
            TrySendError::Full(reply) => {
                reply.dismiss();
                Error::Busy { what: "stream".into() }
            }
            TrySendError::Disconnected(reply) => {
                reply.dismiss();
                Error::not_found("stream (closed)")
            }
        })
    })
}

/// Changes the depth of an open stream, and returns it. Runs on a dirty scheduler, because it may look for memory.
#[rustler::nif(schedule = "DirtyCpu")]
fn loader_prefetch(env: Env, loader: Handle<LoaderHandle>, depth: usize) -> Term {
    call(env, "prefetch", || {
        let loader = loader.get()?;
        if loader.cancelled.load(Ordering::Relaxed) {
            return Err(Error::not_found("stream (closed)"));
        }
        match &loader.ahead {
            Some(ahead) => ahead.set(depth),
            None => Err(Error::mismatch("prefetch", "a stream that prefetches", "prefetch: 0")),
        }
    })
}

#[rustler::nif]
fn loader_close(env: Env, loader: Handle<LoaderHandle>) -> Term {
    perform(env, "stream", || {
        loader.get()?.close();
        Ok(())
    })
}

struct Loaded {
    step: u64,
    batch: Batch,
    flow: Flow,
    words: bool,
}

/// Encodes `{step, {batch, window}, words, numbers, flow}`: `words` says whether labels have 16 bits, `numbers` holds
/// one binary per column.
impl Answer for Loaded {
    fn into_term(self, env: Env<'_>) -> Result<Term<'_>> {
        let Loaded { step, batch, flow, words } = self;
        let shape = (batch.frames.batch, batch.frames.time);
        let batch = ResourceArc::new(BatchHandle(batch));
        let binary = |of: fn(&Batch) -> &[u8]| batch.make_binary(env, |batch| of(&batch.0));
        let labels = |labels| labels_to(env, labels, words);
        let numbers = (
            binary(|b| bytemuck::cast_slice(&b.frames.continuous)),
            binary(|b| bytemuck::cast_slice(&b.frames.ids)),
            labels(&batch.0.frames.previous),
            labels(&batch.0.queue),
            labels(&batch.0.labels),
            binary(|b| bytemuck::cast_slice(&b.weights)),
        );
        Ok((step, shape, words, numbers, Data(flow).into_term(env)?).encode(env))
    }
}

/// The values of a batch cross the border in native byte order.
#[cfg(not(target_endian = "little"))]
compile_error!("batches cross to Elixir in their memory layout, which must be little-endian");
