//! Encodes several files as one input.

use std::path::{Component, Path};

/// Names and contents of files, in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Bundle(pub Vec<(String, Vec<u8>)>);

impl Bundle {
    /// Parses any bytes, and ignores the rest after the first malformed entry.
    pub fn parse(mut bytes: &[u8]) -> Self {
        let mut files = vec![];
        while let Some((name, rest)) = take(bytes) {
            let Some((content, rest)) = take(rest) else { break };
            files.push((String::from_utf8_lossy(name).into_owned(), content.to_vec()));
            bytes = rest;
        }
        Bundle(files)
    }

    pub fn encode(&self) -> Vec<u8> {
        let part = |bytes: &[u8]| [&(bytes.len() as u32).to_le_bytes(), bytes].concat();
        self.0
            .iter()
            .flat_map(|(name, content)| [part(name.as_bytes()), part(content)])
            .flatten()
            .collect()
    }

    /// Reads the files below a folder, sorted by name.
    pub fn read(dir: &Path) -> std::io::Result<Self> {
        let mut files = vec![];
        collect(dir, dir, &mut files)?;
        files.sort();
        Ok(Bundle(files))
    }

    /// Writes the files into a folder. Names that lead out of it are ignored.
    pub fn write(&self, dir: &Path) -> std::io::Result<()> {
        for (name, content) in &self.0 {
            let inside =
                Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
            let path = dir.join(name);
            if inside && !name.is_empty() && !name.contains('\0') {
                // Writing fails if a folder of this name exists; the failure is ignored.
                let _ = path.parent().map(std::fs::create_dir_all);
                let _ = std::fs::write(path, content);
            }
        }
        Ok(())
    }

    pub fn get_mut(&mut self, name: &str) -> Option<&mut Vec<u8>> {
        self.0.iter_mut().find(|(other, _)| other == name).map(|(_, content)| content)
    }
}

fn take(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}

fn collect(root: &Path, dir: &Path, files: &mut Vec<(String, Vec<u8>)>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(root, &path, files)?;
        } else if let Ok(name) = path.strip_prefix(root) {
            files.push((name.to_string_lossy().into_owned(), std::fs::read(&path)?));
        }
    }
    Ok(())
}
