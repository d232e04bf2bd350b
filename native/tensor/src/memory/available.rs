//! How much memory this process can still take.
//!
//! Three things bound it on Linux: the free memory of the machine, the cgroups that the process is in, and its
//! limit of address space (`ulimit -v`). Where the system names none of them, as on macOS, the answer is `None`.

use std::fs;
use std::path::Path;

use serde::Serialize;

/// What bounds the memory that is available.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// MemAvailable of the machine.
    Machine,
    /// The limit of a cgroup less what its processes use, without the file cache that the kernel can drop.
    Cgroup,
    /// RLIMIT_AS less the address space in use.
    AddressSpace,
}

impl Bound {
    /// What frees memory under this bound.
    pub fn mend(self) -> &'static str {
        match self {
            Bound::Machine => "work on less at once, or free memory of the machine",
            Bound::Cgroup => "work on less at once, or raise the memory limit of the cgroup",
            Bound::AddressSpace => "work on less at once, or raise the limit of ulimit -v",
        }
    }
}

/// Bytes that the process can take, and what bounds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Available {
    pub bytes: u64,
    pub bound: Bound,
}

/// The least of the three bounds at this moment.
pub fn available() -> Option<Available> {
    least(Path::new("/"), 0)
}

/// The least of the three bounds, as the files below `root` tell them. `held` is address space that the allocator
/// has reserved and can hand out again.
pub(super) fn least(root: &Path, held: u64) -> Option<Available> {
    let space = address_space(root).map(|bytes| bytes.saturating_add(held));
    [(machine(root), Bound::Machine), (cgroup(root), Bound::Cgroup), (space, Bound::AddressSpace)]
        .into_iter()
        .filter_map(|(bytes, bound)| Some(Available { bytes: bytes?, bound }))
        .min_by_key(|available| available.bytes)
}

fn machine(root: &Path) -> Option<u64> {
    kilobytes(&read(root, "proc/meminfo")?, "MemAvailable:")
}

fn address_space(root: &Path) -> Option<u64> {
    const LIMIT: &str = "Max address space";
    let limits = read(root, "proc/self/limits")?;
    let line = limits.lines().find(|line| line.starts_with(LIMIT))?;
    // The soft limit; it is no number where there is none.
    let limit: u64 = line[LIMIT.len()..].split_whitespace().next()?.parse().ok()?;
    Some(limit.saturating_sub(kilobytes(&read(root, "proc/self/status")?, "VmSize:")?))
}

/// A version of cgroups: where they are mounted, and the names of their files.
struct Version {
    mounts: &'static [&'static str],
    limits: &'static [&'static str],
    used: &'static str,
    /// Of `memory.stat`: bytes of files that the kernel drops before it refuses memory.
    cache: [&'static str; 2],
}

const V1: Version = Version {
    mounts: &["sys/fs/cgroup/memory"],
    limits: &["memory.limit_in_bytes"],
    used: "memory.usage_in_bytes",
    cache: ["total_active_file", "total_inactive_file"],
};

const V2: Version = Version {
    mounts: &["sys/fs/cgroup", "sys/fs/cgroup/unified"],
    limits: &["memory.max"],
    used: "memory.current",
    cache: ["active_file", "inactive_file"],
};

/// The least that a cgroup of the process, or one around it, has left.
fn cgroup(root: &Path) -> Option<u64> {
    let cgroups = read(root, "proc/self/cgroup")?;
    let left = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        match controllers.split(',').any(|name| name == "memory") {
            true => V1.left(root, path),
            false if controllers.is_empty() => V2.left(root, path),
            false => None,
        }
    };
    cgroups.lines().filter_map(left).min()
}

impl Version {
    fn left(&self, root: &Path, path: &str) -> Option<u64> {
        // A path outside the namespace of the process cannot be seen: its mount is then the cgroup itself.
        let path = if path.split('/').any(|part| part == "..") { "" } else { path };
        let path = Path::new(path.trim_start_matches('/'));
        let levels = self
            .mounts
            .iter()
            .flat_map(|mount| path.ancestors().map(move |level| root.join(mount).join(level)));
        levels.filter_map(|level| self.left_at(&level)).min()
    }

    fn left_at(&self, level: &Path) -> Option<u64> {
        let number = |name: &&str| read(level, name)?.trim().parse::<u64>().ok();
        let limit = self.limits.iter().filter_map(number).min()?;
        let used = number(&self.used)?;
        let stat = read(level, "memory.stat").unwrap_or_default();
        let cache: u64 = self.cache.iter().filter_map(|name| field(&stat, name)).sum();
        Some(limit.saturating_sub(used.saturating_sub(cache)))
    }
}

/// A file of the kernel: its length says 0, and it ends by itself.
#[allow(clippy::disallowed_methods)]
fn read(dir: &Path, name: &str) -> Option<String> {
    fs::read_to_string(dir.join(name)).ok()
}

/// The number behind a name at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| (words.next()? == name).then(|| words.next()?.parse().ok())?)
}

fn kilobytes(text: &str, name: &str) -> Option<u64> {
    field(text, name).map(|kilobytes| kilobytes.saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A root with these files.
    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    const MEMINFO: (&str, &str) =
        ("proc/meminfo", "MemTotal:       8000 kB\nMemAvailable:   5000 kB\nCached: 7 kB\n");

    fn found(files: &[(&str, &str)]) -> Option<(u64, Bound)> {
        least(root(files).path(), 0).map(|available| (available.bytes, available.bound))
    }

    #[test]
    fn a_system_that_names_no_bound_has_none() {
        assert_eq!(found(&[]), None);
        let junk = [("proc/meminfo", "MemAvailable: many kB"), ("proc/self/cgroup", "0\n::\nx")];
        assert_eq!(found(&junk), None);
    }

    #[test]
    fn the_machine_bounds_where_nothing_else_does() {
        let limits = "Limit  Soft Limit  Hard Limit  Units\n\
                      Max address space         unlimited            unlimited            bytes\n";
        let files = [
            MEMINFO,
            ("proc/self/limits", limits),
            ("proc/self/status", "VmSize:\t 3000 kB\n"),
            ("proc/self/cgroup", "0::/app\n"),
            ("sys/fs/cgroup/app/memory.max", "max\n"),
            ("sys/fs/cgroup/app/memory.current", "100\n"),
        ];
        assert_eq!(found(&files), Some((5000 << 10, Bound::Machine)));
    }

    #[test]
    fn address_space_is_its_soft_limit_less_what_is_in_use_and_more_what_the_allocator_holds() {
        let limits = "Max address space         4096000              8192000              bytes\n";
        let files = [
            MEMINFO,
            ("proc/self/limits", limits),
            ("proc/self/status", "Name:\tbeam\nVmSize:\t    3000 kB\n"),
        ];
        assert_eq!(found(&files), Some((1000 << 10, Bound::AddressSpace)));
        let held = least(root(&files).path(), 500 << 10);
        let (bytes, bound) = (1500 << 10, Bound::AddressSpace);
        assert_eq!(held, Some(Available { bytes, bound }));
    }

    #[test]
    fn a_cgroup_has_left_its_least_limit_less_what_cannot_be_dropped() {
        let files = [
            MEMINFO,
            ("proc/self/cgroup", "0::/slice/app\n"),
            ("sys/fs/cgroup/slice/memory.max", "100000\n"),
            ("sys/fs/cgroup/slice/memory.current", "80000\n"),
            ("sys/fs/cgroup/slice/memory.stat", "anon 1\nactive_file 10000\ninactive_file 20000\n"),
            ("sys/fs/cgroup/slice/app/memory.max", "90000\n"),
            // A process at this limit is slowed down, and refused nothing.
            ("sys/fs/cgroup/slice/app/memory.high", "10000\n"),
            ("sys/fs/cgroup/slice/app/memory.current", "10000\n"),
        ];
        assert_eq!(found(&files), Some((50_000, Bound::Cgroup)));
        // One whose path is not below the mount is the mount itself.
        let files = [
            ("proc/self/cgroup", "0::/../elsewhere\n"),
            ("sys/fs/cgroup/memory.max", "5000\n"),
            ("sys/fs/cgroup/memory.current", "7000\n"),
        ];
        assert_eq!(found(&files), Some((0, Bound::Cgroup)));
    }

    #[test]
    fn a_cgroup_of_version_1_counts_as_well() {
        let files = [
            MEMINFO,
            ("proc/self/cgroup", "4:cpu,cpuacct:/\n3:memory:/box\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "123456789\n"),
            ("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "300000\n"),
            ("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "200000\n"),
            ("sys/fs/cgroup/memory/box/memory.stat", "total_inactive_file 50000\n"),
        ];
        assert_eq!(found(&files), Some((150_000, Bound::Cgroup)));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn linux_says_what_is_available() {
        assert!(available().is_some_and(|available| available.bytes > 1 << 20));
    }
}
