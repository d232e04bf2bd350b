//! Checkpoints written by a thread of their own, while the run goes on.
//!
//! 1. What is written is a snapshot: the run changes its weights meanwhile.
//! 2. One save is under way at a time. Who has another one waits for it, or comes later.
//! 3. Files of a save are written in their order, and after one that fails none: a state never tells of
//!    a best policy that is not there. That policy is kept, and goes before the next save.
//! 4. What fails is told and counted; the run goes on, and the file before it stays. Where no state was written
//!    until the end, the last failure is the run's.
//! 5. A saver that is dropped waits for its thread: the folder's lock is given back after it.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use sconce_nn::checkpoint::Snapshot;
use sconce_tensor::pool::Class;
use sconce_tensor::{Error, Result, fs};

use super::folder::{Folder, Keep, Kind};
use crate::report::{Event, SaveFailure, Saves};

/// How the bytes of a checkpoint get into its file.
pub(super) type Disk = Arc<dyn Fn(&mut File, &[u8]) -> io::Result<()> + Send + Sync>;

/// A file to be, under its name and maybe a numbered one.
pub(super) struct Draft {
    pub snapshot: Snapshot,
    pub path: PathBuf,
    pub numbered: Option<PathBuf>,
}

/// What is written at one step.
pub(super) struct Save {
    pub step: u64,
    pub policy: Option<Draft>,
    pub state: Draft,
    pub keep: Keep,
}

/// Saves on their way to the thread, and outcomes on their way back. One save is under way at a time: [`Saver::save`]
/// waits for the one before it, so neither side ever waits for room.
const SAVES: usize = 1;

pub(super) struct Saver {
    saves: Option<SyncSender<Save>>,
    done: Receiver<Done>,
    thread: Option<JoinHandle<Option<Draft>>>,
    /// The step of the save that is under way, and its state's file.
    busy: Option<(u64, PathBuf)>,
    told: Saves,
    /// The last state that could not be written, and why.
    lost: Option<(PathBuf, String)>,
}

/// What became of a save.
struct Done {
    seconds: f64,
    /// Whether its state is on the disk.
    written: bool,
    failed: Option<Failed>,
}

/// What is left when all saves are over.
pub(super) struct Finished {
    pub saves: Saves,
    /// The best policy, if no file has it.
    pub unwritten: Option<Snapshot>,
    /// File and reason of the last failure, where states were to be written and none was.
    pub lost: Option<(PathBuf, String)>,
}

impl Saver {
    pub(super) fn start(folder: Folder, disk: Disk) -> Result<Self> {
        let (saves, orders) = sync_channel::<Save>(SAVES);
        let (tell, done) = sync_channel(SAVES);
        let class = Class::current();
        let work = move || {
            class.enter();
            let mut writer = Writer { folder, disk, owed: None };
            for save in orders {
                let began = Instant::now();
                let (written, failed) = writer.save(save);
                // A run that is gone hears nothing.
                let _ = tell.send(Done { seconds: began.elapsed().as_secs_f64(), written, failed });
            }
            writer.owed
        };
        let thread = thread::Builder::new().name("sconce-saver".into()).spawn(work);
        let thread = thread
            .map_err(|e| Error::Unavailable { what: "a thread".into(), reason: e.to_string() })?;
        let told = Saves::default();
        Ok(Saver { saves: Some(saves), done, thread: Some(thread), busy: None, told, lost: None })
    }

    /// Whether a save would not have to wait. Tells of one that has come to its end.
    pub(super) fn ready(&mut self, events: &dyn Fn(Event)) -> bool {
        if self.busy.is_some()
            && let Ok(done) = self.done.try_recv()
        {
            self.settle(done, events);
        }
        self.busy.is_none()
    }

    /// Waits for the save that is under way.
    pub(super) fn wait(&mut self, events: &dyn Fn(Event)) {
        if self.busy.is_none() {
            return;
        }
        let began = Instant::now();
        let done = self.done.recv().unwrap_or_else(|_| self.ended());
        self.told.wait_seconds += began.elapsed().as_secs_f64();
        self.settle(done, events);
    }

    /// Begins a save, after the one that is under way.
    pub(super) fn save(&mut self, save: Save, events: &dyn Fn(Event)) {
        self.wait(events);
        self.busy = Some((save.step, save.state.path.clone()));
        let sent = self.saves.as_ref().is_some_and(|saves| saves.send(save).is_ok());
        if !sent {
            let done = self.ended();
            self.settle(done, events);
        }
    }

    /// Waits for all.
    pub(super) fn finish(&mut self, events: &dyn Fn(Event)) -> Finished {
        self.wait(events);
        let unwritten = self.join().map(|draft| draft.snapshot);
        let saves = std::mem::take(&mut self.told);
        let lost = self.lost.take().filter(|_| saves.written == 0);
        Finished { saves, unwritten, lost }
    }

    /// Tells and counts a file beside the checkpoints that could not be written.
    pub(super) fn fail(&mut self, step: u64, path: PathBuf, error: &Error, events: &dyn Fn(Event)) {
        events(self.told.fail(step, path, error));
    }

    fn join(&mut self) -> Option<Draft> {
        // It ends with its last order.
        self.saves = None;
        self.thread.take().and_then(|thread| thread.join().ok()).flatten()
    }

    /// The thread is gone, which only a bug of ours can cause.
    fn ended(&self) -> Done {
        let path = self.busy.as_ref().map(|(_, path)| path.clone()).unwrap_or_default();
        let error = Error::Panic { message: "the thread that writes checkpoints ended".into() };
        Done { seconds: 0.0, written: false, failed: Some((path, error)) }
    }

    fn settle(&mut self, done: Done, events: &dyn Fn(Event)) {
        let Some((step, path)) = self.busy.take() else { return };
        self.told.seconds += done.seconds;
        if done.written {
            self.told.written += 1;
            self.told.step = Some(step);
            events(Event::Checkpoint { path, step });
        }
        if let Some((path, error)) = done.failed {
            if !done.written {
                let reason = match &error {
                    // Its path is told beside it.
                    Error::Io { source, .. } => source.to_string(),
                    error => error.to_string(),
                };
                self.lost = Some((path.clone(), reason));
            }
            events(self.told.fail(step, path, &error));
        }
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        self.join();
    }
}

impl Saves {
    /// Counts a failure, beside those before it of the same file and reason.
    pub(super) fn fail(&mut self, step: u64, path: PathBuf, error: &Error) -> Event {
        let reason = error.to_string();
        let same = |f: &&mut SaveFailure| f.path == path && f.reason == reason;
        match self.failed.iter_mut().find(same) {
            Some(failure) => (failure.step, failure.times) = (step, failure.times + 1),
            None => {
                let failure =
                    SaveFailure { path: path.clone(), reason: reason.clone(), step, times: 1 };
                self.failed.push(failure);
            }
        }
        Event::SaveFailed { path, step, reason }
    }
}

struct Writer {
    folder: Folder,
    disk: Disk,
    /// The best policy, if its file could not be written.
    owed: Option<Draft>,
}

/// The file that could not be written, and why.
type Failed = (PathBuf, Error);

impl Writer {
    /// Whether the state was written, and what failed: the first file, or the removal of old ones.
    fn save(&mut self, save: Save) -> (bool, Option<Failed>) {
        let best = self.folder.file(Kind::Best);
        let better = save.policy.as_ref().is_some_and(|policy| policy.path == best);
        let owed = self.owed.take().filter(|_| !better);
        for draft in owed.into_iter().chain(save.policy).chain([save.state]) {
            if let Err(error) = self.write(&draft) {
                let path = draft.path.clone();
                self.owed = Some(draft).filter(|draft| draft.path == best);
                return (false, Some((path, error)));
            }
        }
        let failed = |error| (self.folder.path().to_path_buf(), error);
        (true, self.folder.prune(&save.keep).err().map(failed))
    }

    fn write(&self, draft: &Draft) -> Result<()> {
        let bytes = draft.snapshot.encode()?;
        let create = |path| fs::write_atomic(path, |file| (self.disk)(file, &bytes));
        match &draft.numbered {
            None => create(&draft.path),
            // What is not there yet comes first, and then takes the place of what is.
            Some(numbered) => {
                create(numbered)?;
                fs::link_atomic(numbered, &draft.path)
            }
        }
    }
}
