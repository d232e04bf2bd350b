//! Terms in Erlang's external format ("External Term Format", ERTS User's Guide), read without the VM.
//!
//! Names stay text, so that a file creates no atom. Funs, pids, ports and references are skipped and named only by
//! their kind. Every length is compared with the bytes that are left before memory is reserved, and depth and number of
//! terms are bounded.

use std::borrow::Cow;
use std::fmt;

use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;

/// Version of the format, the first byte of a term.
pub const VERSION: u8 = 131;
/// Most terms inside terms. A policy has about ten.
const MAX_DEPTH: usize = 64;
/// Most terms of a file: far more than the names and shapes of [`sconce_nn::spec::MAX_LAYERS`] layers.
const MAX_TERMS: usize = 1 << 20;
/// Largest ratio of inflated to deflated bytes. Trained weights have a ratio near 1.
const MAX_RATIO: usize = 100;

/// A term. Text and bytes refer to the file.
#[derive(Debug, Clone, PartialEq)]
pub enum Term<'a> {
    /// An integer of at most 64 bits.
    Integer(i64),
    /// A float.
    Float(f64),
    /// The name of an atom.
    Atom(Cow<'a, str>),
    /// A binary.
    Binary(Cow<'a, [u8]>),
    /// A tuple.
    Tuple(Vec<Term<'a>>),
    /// A proper list, or a string of bytes.
    List(Vec<Term<'a>>),
    /// A map.
    Map(Vec<(Term<'a>, Term<'a>)>),
    /// A term that is code, a process or a machine's own: a fun, a pid, a port or a reference.
    Opaque(&'static str),
}

/// Why a term cannot be read.
pub type Fault = String;
type Read<T> = std::result::Result<T, Fault>;

/// Reads the term that `bytes` consist of.
///
/// # Errors
/// The fault, with its position.
pub fn decode(bytes: &[u8]) -> Read<Term<'_>> {
    let (term, rest) = decode_first(bytes)?;
    match rest.len() {
        0 => Ok(term),
        n => Err(format!("{n} bytes after the term")),
    }
}

/// Reads the term at the start of `bytes`, and returns the rest.
///
/// # Errors
/// The fault, with its position.
pub fn decode_first(bytes: &[u8]) -> Read<(Term<'_>, &[u8])> {
    let body = match bytes {
        [VERSION, body @ ..] => body,
        _ => return Err(format!("a term begins with the byte {VERSION}")),
    };
    if let [80, body @ ..] = body {
        let (size, deflated) = body.split_first_chunk::<4>().ok_or("the end of the file")?;
        let size = u32::from_be_bytes(*size) as usize;
        let inflated = inflate(deflated, size)?;
        if inflated.len() != size {
            return Err(format!("{} bytes, of which the header announces {size}", inflated.len()));
        }
        let mut reader = Reader { whole: inflated.len(), rest: &inflated, terms: 0 };
        let term = reader.term(0)?.into_owned();
        return match reader.rest.len() {
            0 => Ok((term, &[])),
            n => Err(format!("{n} bytes after the term")),
        };
    }
    let mut reader = Reader { whole: bytes.len(), rest: body, terms: 0 };
    let term = reader.term(0)?;
    Ok((term, reader.rest))
}

/// Inflates a zlib stream to at most `most` bytes, and to at most [`MAX_RATIO`] times its length.
///
/// # Errors
/// A text, for a stream that is invalid or larger.
pub fn inflate(deflated: &[u8], most: usize) -> Read<Vec<u8>> {
    let limit = most.min(deflated.len().saturating_mul(MAX_RATIO));
    decompress_to_vec_zlib_with_limit(deflated, limit).map_err(|error| {
        use miniz_oxide::inflate::TINFLStatus::HasMoreOutput;
        match error.status {
            HasMoreOutput => format!("a zlib stream of more than {limit} bytes"),
            _ => "an invalid zlib stream".into(),
        }
    })
}

impl<'a> Term<'a> {
    /// The name of an atom.
    pub fn atom(&self) -> Option<&str> {
        match self {
            Term::Atom(name) => Some(name),
            _ => None,
        }
    }

    /// The text of an atom or of a binary in UTF-8, the two forms of a key.
    pub fn text(&self) -> Option<&str> {
        match self {
            Term::Atom(name) => Some(name),
            Term::Binary(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// The bytes of a binary.
    pub fn binary(&self) -> Option<&[u8]> {
        match self {
            Term::Binary(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// An integer that is a size.
    pub fn size(&self) -> Option<usize> {
        match self {
            Term::Integer(n) => usize::try_from(*n).ok(),
            _ => None,
        }
    }

    /// The elements of a tuple.
    pub fn tuple(&self) -> Option<&[Term<'a>]> {
        match self {
            Term::Tuple(all) => Some(all),
            _ => None,
        }
    }

    /// The elements of a list.
    pub fn list(&self) -> Option<&[Term<'a>]> {
        match self {
            Term::List(all) => Some(all),
            _ => None,
        }
    }

    /// The pairs of a map.
    pub fn map(&self) -> Option<&[(Term<'a>, Term<'a>)]> {
        match self {
            Term::Map(pairs) => Some(pairs),
            _ => None,
        }
    }

    /// The value of a key, an atom or a binary, in a map.
    pub fn get(&self, key: &str) -> Option<&Term<'a>> {
        let pairs = self.map()?;
        pairs.iter().find(|(own, _)| own.text() == Some(key)).map(|(_, value)| value)
    }

    /// The kind of the first term that is code, a process or a machine's own.
    pub fn opaque(&self) -> Option<&'static str> {
        match self {
            Term::Opaque(kind) => Some(kind),
            Term::Tuple(all) | Term::List(all) => all.iter().find_map(Term::opaque),
            Term::Map(pairs) => pairs.iter().find_map(|(k, v)| k.opaque().or_else(|| v.opaque())),
            _ => None,
        }
    }

    /// The term, with copies of its text and bytes.
    fn into_owned(self) -> Term<'static> {
        let all = |terms: Vec<Term>| terms.into_iter().map(Term::into_owned).collect();
        match self {
            Term::Integer(n) => Term::Integer(n),
            Term::Float(x) => Term::Float(x),
            Term::Atom(name) => Term::Atom(name.into_owned().into()),
            Term::Binary(bytes) => Term::Binary(bytes.into_owned().into()),
            Term::Tuple(terms) => Term::Tuple(all(terms)),
            Term::List(terms) => Term::List(all(terms)),
            Term::Map(pairs) => {
                let own = |(k, v): (Term, Term)| (k.into_owned(), v.into_owned());
                Term::Map(pairs.into_iter().map(own).collect())
            }
            Term::Opaque(kind) => Term::Opaque(kind),
        }
    }
}

/// Writes small terms as Elixir does, and of large ones only their size.
impl fmt::Display for Term<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Term::Integer(n) => write!(f, "{n}"),
            Term::Float(x) => write!(f, "{x:?}"),
            Term::Atom(name) if matches!(&**name, "nil" | "true" | "false") => f.write_str(name),
            Term::Atom(name) => write!(f, ":{}", name.escape_debug()),
            Term::Binary(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) if text.len() <= 80 => write!(f, "{text:?}"),
                _ => write!(f, "a binary of {} bytes", bytes.len()),
            },
            Term::Tuple(all) | Term::List(all) if all.len() <= 8 => {
                let (open, close) = if self.list().is_some() { ('[', ']') } else { ('{', '}') };
                write!(f, "{open}")?;
                for (i, term) in all.iter().enumerate() {
                    write!(f, "{}{term}", if i == 0 { "" } else { ", " })?;
                }
                write!(f, "{close}")
            }
            Term::Tuple(all) => write!(f, "a tuple of {}", all.len()),
            Term::List(all) => write!(f, "a list of {}", all.len()),
            Term::Map(pairs) => write!(f, "a map of {}", pairs.len()),
            Term::Opaque(kind) => write!(f, "a {kind}"),
        }
    }
}

struct Reader<'a> {
    whole: usize,
    rest: &'a [u8],
    terms: usize,
}

impl<'a> Reader<'a> {
    fn at(&self) -> usize {
        self.whole - self.rest.len()
    }

    fn take(&mut self, n: usize) -> Read<&'a [u8]> {
        let Some((taken, rest)) = self.rest.split_at_checked(n) else {
            return Err(format!(
                "{n} bytes at byte {}, and {} are left",
                self.at(),
                self.rest.len()
            ));
        };
        self.rest = rest;
        Ok(taken)
    }

    /// A big-endian number of N bytes.
    fn number<const N: usize>(&mut self) -> Read<usize> {
        let bytes = self.take(N)?;
        Ok(bytes.iter().fold(0, |all, byte| all << 8 | usize::from(*byte)))
    }

    fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        Ok(self.take(N)?.try_into().unwrap_or([0; N]))
    }

    /// Terms of one after the other. Each has at least one byte, so that a wrong count reserves no memory.
    fn terms(&mut self, count: usize, depth: usize) -> Read<Vec<Term<'a>>> {
        if count > self.rest.len() {
            let left = self.rest.len();
            return Err(format!("{count} terms at byte {}, and {left} bytes are left", self.at()));
        }
        (0..count).map(|_| self.term(depth + 1)).collect()
    }

    /// Counts terms that are read next.
    fn count(&mut self, terms: usize, depth: usize) -> Read<()> {
        self.terms = self.terms.saturating_add(terms);
        if depth > MAX_DEPTH || self.terms > MAX_TERMS {
            let limit = format!("{MAX_DEPTH} terms deep or of {MAX_TERMS} terms");
            return Err(format!("a term that is more than {limit}, at byte {}", self.at()));
        }
        Ok(())
    }

    fn term(&mut self, depth: usize) -> Read<Term<'a>> {
        self.count(1, depth)?;
        let at = self.at();
        Ok(match self.number::<1>()? {
            97 => Term::Integer(self.number::<1>()? as i64),
            98 => Term::Integer(i32::from_be_bytes(self.array()?).into()),
            70 => Term::Float(f64::from_be_bytes(self.array()?)),
            110 => self.big::<1>()?,
            111 => self.big::<4>()?,
            100 | 118 => self.atom::<2>()?,
            115 | 119 => self.atom::<1>()?,
            104 => self.tuple::<1>(depth)?,
            105 => self.tuple::<4>(depth)?,
            106 => Term::List(vec![]),
            107 => {
                let n = self.number::<2>()?;
                let bytes = self.take(n)?;
                self.count(n, depth)?;
                Term::List(bytes.iter().map(|byte| Term::Integer((*byte).into())).collect())
            }
            108 => {
                let n = self.number::<4>()?;
                let all = self.terms(n, depth)?;
                match self.term(depth + 1)? {
                    Term::List(tail) if tail.is_empty() => Term::List(all),
                    _ => return Err(format!("an improper list at byte {at}")),
                }
            }
            109 => {
                let n = self.number::<4>()?;
                Term::Binary(self.take(n)?.into())
            }
            116 => self.map(depth)?,
            tag => self.opaque(tag, depth, at)?,
        })
    }

    fn tuple<const N: usize>(&mut self, depth: usize) -> Read<Term<'a>> {
        let n = self.number::<N>()?;
        Ok(Term::Tuple(self.terms(n, depth)?))
    }

    fn map(&mut self, depth: usize) -> Read<Term<'a>> {
        let n = self.number::<4>()?;
        let mut all = self.terms(n.saturating_mul(2), depth)?.into_iter();
        let mut pairs = Vec::with_capacity(n);
        while let (Some(key), Some(value)) = (all.next(), all.next()) {
            pairs.push((key, value));
        }
        Ok(Term::Map(pairs))
    }

    fn atom<const N: usize>(&mut self) -> Read<Term<'a>> {
        let (at, n) = (self.at(), self.number::<N>()?);
        let name = std::str::from_utf8(self.take(n)?);
        Ok(Term::Atom(name.map_err(|_| format!("an atom at byte {at} that is no text"))?.into()))
    }

    fn big<const N: usize>(&mut self) -> Read<Term<'a>> {
        let (at, n) = (self.at(), self.number::<N>()?);
        let negative = self.number::<1>()? != 0;
        let digits = self.take(n)?;
        let magnitude = digits.iter().rev().try_fold(0i128, |all, digit| {
            (all <= i128::from(u64::MAX)).then_some(all << 8 | i128::from(*digit))
        });
        let value = magnitude.map(|n| if negative { -n } else { n });
        let value = value.and_then(|n| i64::try_from(n).ok());
        Ok(Term::Integer(value.ok_or_else(|| format!("an integer of over 64 bits at byte {at}"))?))
    }

    /// Skips a term that is code, a process or a machine's own.
    fn opaque(&mut self, tag: usize, depth: usize, at: usize) -> Read<Term<'a>> {
        let node = |reader: &mut Self, bytes: usize| -> Read<()> {
            reader.term(depth + 1)?;
            reader.take(bytes).map(drop)
        };
        Ok(Term::Opaque(match tag {
            // An exported fun: a module, a name and an arity.
            113 => {
                self.terms(3, depth)?;
                "fun"
            }
            // A closure. Its size counts its own four bytes.
            112 => {
                let size = self.number::<4>()?;
                self.take(size.saturating_sub(4))?;
                "fun"
            }
            103 => node(self, 9).map(|()| "pid")?,
            88 => node(self, 12).map(|()| "pid")?,
            102 => node(self, 5).map(|()| "port")?,
            89 => node(self, 8).map(|()| "port")?,
            120 => node(self, 12).map(|()| "port")?,
            114 => {
                let words = self.number::<2>()?;
                node(self, 1 + 4 * words).map(|()| "reference")?
            }
            90 => {
                let words = self.number::<2>()?;
                node(self, 4 + 4 * words).map(|()| "reference")?
            }
            77 => return Err(format!("a bit string at byte {at}")),
            tag => return Err(format!("a term of the unknown kind {tag} at byte {at}")),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(body: &[u8]) -> Vec<u8> {
        [&[VERSION], body].concat()
    }

    #[test]
    fn each_kind_of_term_is_read() {
        // {ok, -1, 2.5, <<"a">>, [1, 2], "hi", #{k => nil}}
        let bytes = small(&[
            104, 7, 119, 2, b'o', b'k', 98, 0xFF, 0xFF, 0xFF, 0xFF, 70, 0x40, 4, 0, 0, 0, 0, 0, 0,
            109, 0, 0, 0, 1, b'a', 108, 0, 0, 0, 2, 97, 1, 97, 2, 106, 107, 0, 2, b'h', b'i', 116,
            0, 0, 0, 1, 119, 1, b'k', 119, 3, b'n', b'i', b'l',
        ]);
        let term = decode(&bytes).unwrap();
        assert_eq!(term.to_string(), r#"{:ok, -1, 2.5, "a", [1, 2], [104, 105], a map of 1}"#);
        assert_eq!(term.tuple().unwrap()[6].get("k"), Some(&Term::Atom("nil".into())));
        let big = small(&[110, 8, 1, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F]);
        assert_eq!(decode(&big), Ok(Term::Integer(-i64::MAX)));
    }

    #[test]
    fn every_cut_and_every_wrong_length_is_a_fault() {
        let bytes = small(&[104, 2, 119, 2, b'o', b'k', 108, 0, 0, 0, 1, 109, 0, 0, 0, 1, 7, 106]);
        assert!(decode(&bytes).is_ok());
        for cut in 0..bytes.len() {
            assert!(decode(&bytes[..cut]).is_err(), "{cut} bytes");
        }
        let said = |body: &[u8]| decode(&small(body)).unwrap_err();
        assert_eq!(said(&[97, 1, 0]), "1 bytes after the term");
        assert_eq!(
            said(&[116, 0xFF, 0xFF, 0xFF, 0xFF, 97]),
            "8589934590 terms at byte 6, and 1 bytes are left"
        );
        assert_eq!(
            said(&[109, 0xFF, 0xFF, 0xFF, 0xFF, 1]),
            "4294967295 bytes at byte 6, and 1 are left"
        );
        assert_eq!(
            said(&[110, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
            "an integer of over 64 bits at byte 2"
        );
        assert_eq!(said(&[108, 0, 0, 0, 0, 97, 1]), "an improper list at byte 1");
        let deep = [[104, 1].repeat(1000), vec![106]].concat();
        assert!(said(&deep).starts_with("a term that is more than 64 terms deep"));
    }

    #[test]
    fn bytes_of_strings_count_as_terms() {
        let string = [&[107, 0xFF, 0xFF][..], &[7; 0xFFFF]].concat();
        let all = |n: u8| [&[104, n][..], &string.repeat(n.into())].concat();
        assert!(decode(&small(&all(15))).is_ok());
        let fault = decode(&small(&all(17))).unwrap_err();
        assert!(
            fault.starts_with("a term that is more than 64 terms deep or of 1048576 terms"),
            "{fault}"
        );
    }

    #[test]
    fn code_and_processes_are_skipped_and_named() {
        let fun = small(&[104, 2, 113, 119, 2, b'o', b's', 119, 3, b'c', b'm', b'd', 97, 1, 97, 7]);
        let term = decode(&fun).unwrap();
        assert_eq!((term.opaque(), term.to_string()), (Some("fun"), "{a fun, 7}".into()));
    }

    #[test]
    fn a_stream_that_inflates_too_far_is_a_fault() {
        let zeros = miniz_oxide::deflate::compress_to_vec_zlib(&[0; 1 << 20], 6);
        assert!(inflate(&zeros, usize::MAX).unwrap_err().starts_with("a zlib stream of more than"));
        let few = miniz_oxide::deflate::compress_to_vec_zlib(b"few bytes", 6);
        assert_eq!(inflate(&few, 9), Ok(b"few bytes".to_vec()));
        assert_eq!(inflate(&few, 8).unwrap_err(), "a zlib stream of more than 8 bytes");
        assert_eq!(inflate(b"no", 8).unwrap_err(), "an invalid zlib stream");
    }
}
