//! Finds the parameters of a policy in the files that ExPhil, Edifice and Axon write.
//!
//! | file | content |
//! |---|---|
//! | manifest | u8 0 or 1 (zlib), u32 length and term of the metadata, then parameters of `Nx.serialize` |
//! | legacy | a term `%{params: .., config: ..}` |
//! | checkpoint | a term `%{policy_params: .., optimizer_state: .., config: ..}` |
//! | average | a term `%{params: .., decay: .., step: ..}`, without a config |
//! | parameters | a term of parameters alone, or `Nx.serialize` of them |
//! | safetensors | names joined by dots, without a config |

use safetensors::{Dtype, SafeTensors};
use sconce_tensor::header;

use crate::layers::{Layers, Leaf, kind, shape};
use crate::term::{self, Fault, Term};
use crate::{Error, Result};

/// Most bytes of a file: the largest policy in f32, twice for the moments of its optimiser, and names.
pub const MAX_BYTES: u64 = 13 << 30;

/// The kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A policy export with metadata, since July 2026.
    Manifest,
    /// A policy export of one term.
    Legacy,
    /// A training checkpoint.
    Checkpoint,
    /// A moving average of parameters.
    Average,
    /// Parameters without a config.
    Parameters,
    /// Safetensors without a config.
    Safetensors,
}

impl Kind {
    /// The name that notes use.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Manifest => "policy export",
            Kind::Legacy => "policy export in the format before July 2026",
            Kind::Checkpoint => "training checkpoint",
            Kind::Average => "moving average",
            Kind::Parameters => "parameters",
            Kind::Safetensors => "safetensors file",
        }
    }
}

/// A file's content.
#[derive(Debug)]
pub struct File<'a> {
    /// The kind of the file.
    pub kind: Kind,
    /// Its parameters.
    pub layers: Layers,
    /// Its config, a map; a file of parameters has none.
    pub config: Option<Term<'a>>,
}

/// Reads a file. `trust` accepts funs, pids, ports and references in its terms, which are skipped in any case.
///
/// # Errors
/// `Corrupt` with the fault; `what` names the file.
pub fn read<'a>(what: &str, bytes: &'a [u8], trust: bool) -> Result<File<'a>> {
    let read = match bytes {
        [] => Err("an empty file".into()),
        [term::VERSION, ..] => of_term(bytes, trust),
        [b'n', b'x', ..] => {
            let bare = |layers| File { kind: Kind::Parameters, layers, config: None };
            serialized(bytes, trust).map(bare)
        }
        [0 | 1, rest @ ..] if !is_safetensors(bytes) => manifest(bytes[0] == 1, rest, trust),
        _ if is_safetensors(bytes) => safetensors(bytes),
        [first, ..] => Err(format!("no policy: it begins with the byte {first}")),
    };
    read.map_err(|reason| Error::corrupt(what, reason))
}

type Found<T> = std::result::Result<T, Fault>;

/// Whether the bytes begin as safetensors do: a length, and JSON of that length.
fn is_safetensors(bytes: &[u8]) -> bool {
    let length = bytes.first_chunk::<8>().map(|length| u64::from_le_bytes(*length));
    let fits = length.is_some_and(|length| length < bytes.len() as u64);
    fits && bytes.get(8) == Some(&b'{')
}

fn manifest(deflated: bool, rest: &[u8], trust: bool) -> Found<File<'_>> {
    let (length, rest) = rest.split_first_chunk::<4>().ok_or("the end of the file")?;
    let length = u32::from_be_bytes(*length) as usize;
    let cut = || format!("cut off: {length} bytes of metadata, and {} are left", rest.len());
    let (metadata, body) = rest.split_at_checked(length).ok_or_else(cut)?;
    let metadata = checked(term::decode(metadata).map_err(in_("metadata"))?, trust)?;
    let config = metadata.get("config").cloned().ok_or("metadata without a config")?;
    let layers = match deflated {
        false => serialized(body, trust)?,
        true => serialized(&term::inflate(body, MAX_BYTES as usize)?, trust)?,
    };
    Ok(File { kind: Kind::Manifest, layers, config: Some(config) })
}

/// Reads `Nx.serialize`: "nx", u8 version 1, u8 endianness, u64 length and term of the containers, buffers.
fn serialized(bytes: &[u8], trust: bool) -> Found<Layers> {
    let rest = bytes.strip_prefix(b"nx").ok_or("no parameters of Nx.serialize")?;
    let rest = match rest {
        [1, 0, rest @ ..] => rest,
        [1, _, ..] => return Err("parameters in big-endian byte order".into()),
        [version, ..] => return Err(format!("version {version} of Nx.serialize, expected 1")),
        [] => return Err("the end of the file".into()),
    };
    let (length, rest) = rest.split_first_chunk::<8>().ok_or("the end of the file")?;
    let length = usize::try_from(u64::from_be_bytes(*length)).unwrap_or(usize::MAX);
    let cut = || format!("cut off: {length} bytes of a term, and {} are left", rest.len());
    let (containers, buffers) = rest.split_at_checked(length).ok_or_else(cut)?;
    let containers = checked(term::decode(containers).map_err(in_("containers"))?, trust)?;
    let mut layers = Layers::default();
    contained(&containers, buffers, &mut vec![], &mut layers)?;
    Ok(layers)
}

/// Walks the containers of `Nx.serialize`: `{module, [{key, term}], meta}`, and leaves
/// `{:t, shape, type, names, axes, offset, size}`.
fn contained<'t>(
    term: &'t Term,
    buffers: &[u8],
    path: &mut Vec<&'t str>,
    layers: &mut Layers,
) -> Found<()> {
    let named = |reason: &str, path: &[&str]| format!("{}: {reason}", path.join("."));
    match term.tuple() {
        Some([tag, sizes, of, _, axes, offset, size]) if tag.atom() == Some("t") => {
            let parts = (shape(sizes), kind(of), offset.size(), size.size());
            let (Some(shape), Some(kind), Some(offset), Some(size)) = parts else {
                return Err(named("no shape, type, offset or size", path));
            };
            if axes.list().is_none_or(|axes| !axes.is_empty()) {
                return Err(named("a vectorised tensor", path));
            }
            let bytes = offset.checked_add(size).and_then(|end| buffers.get(offset..end));
            let bytes =
                bytes.ok_or_else(|| named("its numbers are beyond the end of the file", path))?;
            let leaf = Leaf::read(shape, kind, bytes).map_err(|fault| named(&fault, path))?;
            layers.add(path.join("."), leaf)
        }
        Some([_, pairs, _]) => {
            let pairs = pairs.list().ok_or_else(|| named("no list of parameters", path))?;
            for pair in pairs {
                let Some([key, value]) = pair.tuple() else {
                    return Err(named("no pair of a name and a parameter", path));
                };
                path.push(key.text().ok_or_else(|| named("a name that is no text", path))?);
                contained(value, buffers, path, layers)?;
                path.pop();
            }
            Ok(())
        }
        _ => Err(named("neither a container nor a tensor", path)),
    }
}

fn of_term(bytes: &[u8], trust: bool) -> Found<File<'_>> {
    let whole = checked(term::decode(bytes)?, trust)?;
    let (kind, params, config) = match &whole {
        _ if whole.get("policy_params").is_some() => {
            (Kind::Checkpoint, whole.get("policy_params"), whole.get("config"))
        }
        _ if whole.get("decay").is_some() => (Kind::Average, whole.get("params"), None),
        _ if whole.get("config").is_some() => {
            (Kind::Legacy, whole.get("params"), whole.get("config"))
        }
        _ => (Kind::Parameters, Some(&whole), None),
    };
    let params = params.ok_or("no parameters")?;
    let mut layers = Layers::default();
    held(params, &mut vec![], &mut layers)?;
    Ok(File { kind, layers, config: config.cloned() })
}

/// Walks maps of parameters and structs of Axon and Nx.
fn held<'t>(term: &'t Term, path: &mut Vec<&'t str>, layers: &mut Layers) -> Found<()> {
    let named = |reason: &str, path: &[&str]| match path {
        [] => reason.to_string(),
        _ => format!("{}: {reason}", path.join(".")),
    };
    let pairs = term.map().ok_or_else(|| named("no map of parameters", path))?;
    match term.get("__struct__").and_then(Term::atom) {
        Some("Elixir.Nx.Tensor") => {
            let field = |name: &str| term.get(name);
            let (sizes, of) = (field("shape").and_then(shape), field("type").and_then(kind));
            let bytes = field("data").and_then(|data| data.get("state")).and_then(Term::binary);
            let (Some(shape), Some(kind), Some(bytes)) = (sizes, of, bytes) else {
                return Err(named("a tensor whose numbers are not in the file", path));
            };
            if field("vectorized_axes").and_then(Term::list).is_some_and(|axes| !axes.is_empty()) {
                return Err(named("a vectorised tensor", path));
            }
            let leaf = Leaf::read(shape, kind, bytes).map_err(|fault| named(&fault, path))?;
            return layers.add(path.join("."), leaf);
        }
        Some("Elixir.Axon.ModelState") => {
            let data = term.get("data").ok_or_else(|| named("a state without data", path))?;
            return held(data, path, layers);
        }
        Some(other) => return Err(named(&format!("a struct of {other}"), path)),
        None => {}
    }
    for (key, value) in pairs {
        path.push(key.text().ok_or_else(|| named("a name that is no text", path))?);
        held(value, path, layers)?;
        path.pop();
    }
    Ok(())
}

fn safetensors(bytes: &[u8]) -> Found<File<'_>> {
    header::of_bytes(bytes)?;
    let file = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
    let mut layers = Layers::default();
    for (name, tensor) in file.tensors() {
        let kind = match tensor.dtype() {
            Dtype::F32 => ("f", 32),
            Dtype::BF16 => ("bf", 16),
            Dtype::F16 => ("f", 16),
            Dtype::F64 => ("f", 64),
            Dtype::U32 => ("u", 32),
            Dtype::I32 => ("s", 32),
            other => return Err(format!("{name}: numbers of the unsupported type {other:?}")),
        };
        let leaf = Leaf::read(tensor.shape().to_vec(), kind, tensor.data());
        layers.add(name.clone(), leaf.map_err(|fault| format!("{name}: {fault}"))?)?;
    }
    Ok(File { kind: Kind::Safetensors, layers, config: None })
}

fn in_(part: &'static str) -> impl FnOnce(Fault) -> Fault {
    move |fault| format!("{part}: {fault}")
}

/// # Errors
/// A text, for a term with code or processes in it, unless it is trusted.
fn checked<'a>(term: Term<'a>, trust: bool) -> Found<Term<'a>> {
    match term.opaque() {
        Some(kind) if !trust => Err(format!("a {kind} in its term, which only trust: true skips")),
        _ => Ok(term),
    }
}
