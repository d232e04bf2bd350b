//! Checkpoints, written by a separate thread while the run continues.
//!
//! 1. The thread writes a snapshot, because the run changes its weights meanwhile.
//! 2. One save is in flight at a time. The next save waits for it, or is made later.
//! 3. The files of a save are written in order, and writing stops after a failure: a state never refers to a best
//!    policy that does not exist. A best policy that could not be written is kept, and written before the next save.
//! 4. Failures are reported and counted. The run continues, and the earlier file stays. If no state is ever written,
//!    the last failure is the error of the run.
//! 5. Dropping a saver waits for its thread, so the folder's lock is released after the last write.

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

/// A function that writes the bytes of a checkpoint into its file.
pub(super) type Disk = Arc<dyn Fn(&mut File, &[u8]) -> io::Result<()> + Send + Sync>;

/// A file to write, with its name and an optional numbered name.
pub(super) struct Draft {
    pub snapshot: Snapshot,
    pub path: PathBuf,
    pub numbered: Option<PathBuf>,
}

/// The files of one step.
pub(super) struct Save {
    pub step: u64,
    pub policy: Option<Draft>,
    pub state: Draft,
    pub keep: Keep,
}

/// Capacity of the channels to and from the thread. [`Saver::save`] waits for the previous save, so one save is in
/// flight at a time and neither side ever blocks on a full channel.
const SAVES: usize = 1;

pub(super) struct Saver {
    saves: Option<SyncSender<Save>>,
    done: Receiver<Done>,
    thread: Option<JoinHandle<Option<Draft>>>,
    /// Step and state file of the save in flight.
    busy: Option<(u64, PathBuf)>,
    told: Saves,
    /// File and error of the last state that could not be written.
    lost: Option<(PathBuf, String)>,
}

/// Outcome of a save.
struct Done {
    seconds: f64,
    /// Whether the save's state is on the disk.
    written: bool,
    failed: Option<Failed>,
}

/// Outcome of all saves.
pub(super) struct Finished {
    pub saves: Saves,
    /// The best policy, if it could not be written to a file.
    pub unwritten: Option<Snapshot>,
    /// File and error of the last failure, if no state was ever written.
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
                // If the run was dropped, there is no receiver, so the error is ignored.
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

    /// Whether no save is in flight. Reports a save that has ended.
    pub(super) fn ready(&mut self, events: &dyn Fn(Event)) -> bool {
        if self.busy.is_some()
            && let Ok(done) = self.done.try_recv()
        {
            self.settle(done, events);
        }
        self.busy.is_none()
    }

    /// Waits for the save in flight.
    pub(super) fn wait(&mut self, events: &dyn Fn(Event)) {
        if self.busy.is_none() {
            return;
        }
        let began = Instant::now();
        let done = self.done.recv().unwrap_or_else(|_| self.ended());
        self.told.wait_seconds += began.elapsed().as_secs_f64();
        self.settle(done, events);
    }

    /// Begins a save, after waiting for the one in flight.
    pub(super) fn save(&mut self, save: Save, events: &dyn Fn(Event)) {
        self.wait(events);
        self.busy = Some((save.step, save.state.path.clone()));
        let sent = self.saves.as_ref().is_some_and(|saves| saves.send(save).is_ok());
        if !sent {
            let done = self.ended();
            self.settle(done, events);
        }
    }

    /// Waits for all saves and ends the thread.
    pub(super) fn finish(&mut self, events: &dyn Fn(Event)) -> Finished {
        self.wait(events);
        let unwritten = self.join().map(|draft| draft.snapshot);
        let saves = std::mem::take(&mut self.told);
        let lost = self.lost.take().filter(|_| saves.written == 0);
        Finished { saves, unwritten, lost }
    }

    /// Reports and counts a failure that happened outside of the thread.
    pub(super) fn fail(&mut self, step: u64, path: PathBuf, error: &Error, events: &dyn Fn(Event)) {
        events(self.told.fail(step, path, error));
    }

    fn join(&mut self) -> Option<Draft> {
        // Closing the channel ends the thread.
        self.saves = None;
        self.thread.take().and_then(|thread| thread.join().ok()).flatten()
    }

    /// The outcome of a save whose thread has died, which only a bug in Sconce can cause.
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
                    // The path is reported apart from the reason.
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
    /// Counts a failure. Failures with the same file and error share one entry.
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
    /// The best policy, while its file could not be written.
    owed: Option<Draft>,
}

/// A file that could not be written, and the error.
type Failed = (PathBuf, Error);

impl Writer {
    /// Returns whether the state was written, and the first failure: of a file, or of removing old files.
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
            // The numbered file is new and is written first; a link to it then replaces the file without a number.
            Some(numbered) => {
                create(numbered)?;
                fs::link_atomic(numbered, &draft.path)
            }
        }
    }
}
