//! The memory that this process can still take.
//!
//! On Linux available memory has three bounds: the free memory of the machine, the limits of the process's cgroups, and
//! the limit of its address space (`ulimit -v`). If the system reports no bound, as on macOS, the answer is `None`.

use std::fs;
use std::path::Path;

use serde::Serialize;

/// The bound on available memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// MemAvailable of the machine.
    Machine,
    /// The limit of a cgroup, less the memory of its processes without the file cache that the kernel can drop.
    Cgroup,
    /// RLIMIT_AS, less the address space in use.
    AddressSpace,
}

impl Bound {
    /// The remedy for this bound.
    pub fn mend(self) -> &'static str {
        match self {
            Bound::Machine => "work on less at once, or free memory of the machine",
            Bound::Cgroup => "work on less at once, or raise the memory limit of the cgroup",
            Bound::AddressSpace => "work on less at once, or raise the limit of ulimit -v",
        }
    }
}

/// The memory that the process can take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Available {
    /// The number of bytes.
    pub bytes: u64,
    /// The lowest bound.
    pub bound: Bound,
}

/// The lowest of the three bounds at this moment.
pub fn available() -> Option<Available> {
    least(Path::new("/"), 0)
}

/// The lowest of the three bounds, read from the files below `root`. `held` is address space that the allocator has
/// reserved and can reuse.
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
    // The soft limit, or `unlimited`.
    let limit: u64 = line[LIMIT.len()..].split_whitespace().next()?.parse().ok()?;
    Some(limit.saturating_sub(kilobytes(&read(root, "proc/self/status")?, "VmSize:")?))
}

/// A version of cgroups: its mount points and the names of its files.
struct Version {
    mounts: &'static [&'static str],
    limits: &'static [&'static str],
    used: &'static str,
    /// Fields of `memory.stat` that count file cache; the kernel drops this cache before it refuses memory.
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

/// The smallest remaining memory among the process's cgroups and their ancestors.
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
        // A cgroup path outside of the process's namespace is not visible; the mount point is then the cgroup itself.
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

/// Reads a file of the kernel, whose metadata has length 0.
#[allow(clippy::disallowed_methods)]
fn read(dir: &Path, name: &str) -> Option<String> {
    fs::read_to_string(dir.join(name)).ok()
}

/// The number after `name` at the beginning of a line.
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

    /// Creates a root folder with these files.
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
    fn the_machine_is_the_bound_if_there_is_no_other() {
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
    fn address_space_is_the_soft_limit_less_use_plus_reserves_of_the_allocator() {
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
    fn a_cgroup_has_its_lowest_limit_less_memory_that_cannot_be_dropped() {
        let files = [
            MEMINFO,
            ("proc/self/cgroup", "0::/slice/app\n"),
            ("sys/fs/cgroup/slice/memory.max", "100000\n"),
            ("sys/fs/cgroup/slice/memory.current", "80000\n"),
            ("sys/fs/cgroup/slice/memory.stat", "anon 1\nactive_file 10000\ninactive_file 20000\n"),
            ("sys/fs/cgroup/slice/app/memory.max", "90000\n"),
            // At memory.high the kernel throttles a process but refuses no memory.
            ("sys/fs/cgroup/slice/app/memory.high", "10000\n"),
            ("sys/fs/cgroup/slice/app/memory.current", "10000\n"),
        ];
        assert_eq!(found(&files), Some((50_000, Bound::Cgroup)));
        // A cgroup whose path is not below the mount point is the mount point itself.
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
    fn linux_reports_available_memory() {
        assert!(available().is_some_and(|available| available.bytes > 1 << 20));
    }
}
