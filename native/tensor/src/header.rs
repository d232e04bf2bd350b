//! The header of a safetensors file, checked before memory is taken for its tensors.
//!
//! | bytes | content |
//! |---|---|
//! | 0..8 | length n of the header, u64 little-endian |
//! | 8..8 + n | JSON: metadata, and dtype, shape and offsets of each tensor |
//! | 8 + n.. | the numbers, without gaps |

use safetensors::tensor::{Metadata, TensorInfo};

/// Bytes of the prefix, which holds the length of the header.
pub const PREFIX: usize = 8;
/// Maximum bytes of a header. A training history of 30,000 points with six heads fits.
pub const MAX_BYTES: usize = 1 << 25;
/// Maximum number of JSON values in a header. Each takes up to a hundred bytes of memory.
pub const MAX_VALUES: usize = 1 << 21;
/// Maximum number of tensors in a file: more than the deepest policy has together with its optimiser state.
pub const MAX_TENSORS: usize = 1 << 16;
/// Maximum bytes in the name of a tensor.
pub const MAX_NAME: usize = 256;
/// Maximum number of dimensions of a tensor.
pub const MAX_RANK: usize = 8;

/// The length of the header in a file of `file` bytes, from the file's first 8 bytes.
pub fn length(prefix: &[u8], file: u64) -> Result<usize, String> {
    let prefix: [u8; PREFIX] = prefix.try_into().map_err(|_| format!("{file} bytes"))?;
    let bytes = u64::from_le_bytes(prefix);
    match usize::try_from(bytes).ok().filter(|n| *n <= MAX_BYTES) {
        None => Err(format!("a header of {bytes} bytes, more than {MAX_BYTES}")),
        Some(n) if (PREFIX + n) as u64 > file => {
            Err(format!("a header of {bytes} bytes in a file of {file}"))
        }
        Some(n) => Ok(n),
    }
}

/// Parses a header. Fails unless its tensors fill a file of `file` bytes exactly.
pub fn parse(json: &[u8], file: u64) -> Result<Metadata, String> {
    check_values(json)?;
    let header: Metadata = serde_json::from_slice(json).map_err(|e| e.to_string())?;
    let tensors = header.tensors();
    if tensors.len() > MAX_TENSORS {
        return Err(format!("{} tensors, more than {MAX_TENSORS}", tensors.len()));
    }
    tensors.iter().try_for_each(|(name, info)| check_tensor(name, info))?;
    match (PREFIX + json.len()).checked_add(header.data_len()) {
        Some(expected) if expected as u64 == file => Ok(header),
        Some(expected) => Err(format!("{file} bytes, and its header describes {expected}")),
        None => Err(format!("{file} bytes, and its header describes more than 2^64")),
    }
}

/// Parses the header of a file in memory. Returns its length and its contents.
pub fn of_bytes(bytes: &[u8]) -> Result<(usize, Metadata), String> {
    let file = bytes.len() as u64;
    let n = length(bytes.get(..PREFIX).unwrap_or_default(), file)?;
    let header = parse(bytes.get(PREFIX..PREFIX + n).unwrap_or_default(), file)?;
    Ok((n, header))
}

/// Checks an upper bound on the number of JSON values: counts all characters that can begin a value, even inside
/// strings.
fn check_values(json: &[u8]) -> Result<(), String> {
    let values = json.iter().filter(|byte| matches!(byte, b',' | b'[' | b'{')).count();
    match values <= MAX_VALUES {
        true => Ok(()),
        false => Err(format!("a header of {values} values, more than {MAX_VALUES}")),
    }
}

fn check_tensor(name: &str, info: &TensorInfo) -> Result<(), String> {
    if name.len() > MAX_NAME {
        return Err(format!("a tensor's name of {} bytes, more than {MAX_NAME}", name.len()));
    }
    if info.shape.len() > MAX_RANK {
        return Err(format!("{name} has {} dimensions, more than {MAX_RANK}", info.shape.len()));
    }
    // With a dimension of 0 the size does not overflow, but the product of the other dimensions may overflow in
    // strides.
    let all = info.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d.max(1)));
    all.map(drop).ok_or_else(|| format!("{name} has a size that overflows"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(json: &str, body: usize) -> Vec<u8> {
        [&(json.len() as u64).to_le_bytes()[..], json.as_bytes(), &vec![0; body]].concat()
    }

    fn tensor(name: &str, shape: &str, bytes: usize) -> String {
        format!(r#"{{"{name}":{{"dtype":"F32","shape":{shape},"data_offsets":[0,{bytes}]}}}}"#)
    }

    #[test]
    fn a_header_has_to_account_for_every_byte_of_the_file() {
        let whole = file(&tensor("w", "[2]", 8), 8);
        assert!(of_bytes(&whole).is_ok());
        for n in 0..whole.len() {
            assert!(of_bytes(&whole[..n]).is_err(), "{n}");
        }
        assert!(of_bytes(&[&whole[..], &[0]].concat()).unwrap_err().contains("describes"));
    }

    #[test]
    fn sizes_in_a_header_are_bounded() {
        let said = |json: String| of_bytes(&file(&json, 0)).unwrap_err();
        let mut long = (1u64 << 40).to_le_bytes().to_vec();
        long.resize(100, b'{');
        assert!(of_bytes(&long).unwrap_err().contains("more than 33554432"));
        assert!(said(format!("[{}", "0,".repeat(MAX_VALUES))).contains("2097153 values"));
        assert!(said(tensor(&"n".repeat(257), "[0]", 0)).contains("257 bytes"));
        assert!(said(tensor("w", "[0,1,1,1,1,1,1,1,1]", 0)).contains("9 dimensions"));
        let wide = tensor("w", "[0,4294967296,4294967296]", 0);
        assert!(said(wide).contains("a size that overflows"));
        let many = (0..=MAX_TENSORS).map(|i| tensor(&i.to_string(), "[0]", 0));
        let many: Vec<_> = many.map(|t| t[1..t.len() - 1].to_string()).collect();
        assert!(said(format!("{{{}}}", many.join(","))).contains("65537 tensors"));
        // Nests deeper than the parser's recursion limit.
        assert!(said(format!(r#"{{"w":{}"#, "[".repeat(100_000))).contains("recursion limit"));
    }
}
