//! Compares a policy with recorded answers: windows `x [n, w, width]` and the logits `logits.HEAD [n, ..]` of the last
//! frame of each, in a safetensors file.

use std::path::Path;

use safetensors::{Dtype, SafeTensors};
use sconce_nn::backbone::Context;
use sconce_nn::policy::Frames;
use sconce_nn::spec::NONE;
use sconce_tensor::simd::non_finite;
use sconce_tensor::tensor::to_vec;
use sconce_tensor::{fs, header, memory};

use crate::file::MAX_BYTES;
use crate::{Error, Policy, Result};

/// The largest differences of a policy's logits from recorded ones.
#[derive(Debug, Clone, PartialEq)]
pub struct Compared {
    /// Number of windows.
    pub windows: usize,
    /// Frames of a window.
    pub frames: usize,
    /// Each head with its largest difference and the largest recorded logit.
    pub heads: Vec<(String, f32, f32)>,
}

/// Compares the policy with the answers of a file.
///
/// # Errors
/// `Corrupt` for a file that is not in safetensors, `NotFound` for a tensor that is missing, `Mismatch` for a shape.
pub fn compare(policy: &Policy, path: &Path) -> Result<Compared> {
    let bytes = fs::read(path, MAX_BYTES)?;
    let what = path.display().to_string();
    header::of_bytes(&bytes).map_err(|error| Error::corrupt(&*what, error))?;
    let file = SafeTensors::deserialize(&bytes).map_err(|error| Error::corrupt(&*what, error))?;
    memory::caught(|| compared(policy, &file))
}

fn compared(policy: &Policy, file: &SafeTensors) -> Result<Compared> {
    let spec = policy.spec();
    let (shape, continuous) = tensor(file, "x")?;
    let (width, own) = (spec.embedding.width(), spec.embedding.continuous_width());
    let &[batch, time, given] = &shape[..] else {
        return Err(Error::mismatch("x", "a tensor of 3 dimensions", shape.len()));
    };
    if given != width || own != width || batch * time == 0 {
        return Err(Error::mismatch("x", format!("[n, w, {width}]"), format!("{shape:?}")));
    }
    let previous = vec![NONE; batch * time * spec.heads.num_labels()];
    let frames = Frames { batch, time, continuous, ids: vec![], previous };
    let state = policy.zero_state(batch)?;
    let (logits, _) = policy.forward_last(&frames, None, &state, &Context::default())?;
    let logits = to_vec(&logits)?;
    let mut heads = vec![];
    for part in spec.heads.iter() {
        let (name, count) = (&part.head.name, part.head.kind.logits());
        let (shape, recorded) = tensor(file, &format!("logits.{name}"))?;
        if shape != [batch, count] {
            let expected = format!("[{batch}, {count}]");
            return Err(Error::mismatch(format!("logits.{name}"), expected, format!("{shape:?}")));
        }
        let rows = logits.chunks(spec.heads.num_logits()).zip(recorded.chunks(count));
        let (mut gap, mut most) = (0.0f32, 0.0f32);
        for (row, recorded) in rows {
            for (own, other) in row.iter().skip(part.logits).zip(recorded) {
                if let Some(value) = non_finite(&[*own, *other]) {
                    let what = format!("logits of {name}");
                    return Err(Error::NonFinite { what, value: value.into() });
                }
                gap = gap.max((own - other).abs());
                most = most.max(other.abs());
            }
        }
        heads.push((name.clone(), gap, most));
    }
    Ok(Compared { windows: batch, frames: time, heads })
}

fn tensor(file: &SafeTensors, name: &str) -> Result<(Vec<usize>, Vec<f32>)> {
    let tensor = file.tensor(name).map_err(|_| Error::not_found(name))?;
    if tensor.dtype() != Dtype::F32 {
        return Err(Error::mismatch(name, "32-bit floats", format!("{:?}", tensor.dtype())));
    }
    let (numbers, _) = tensor.data().as_chunks();
    Ok((tensor.shape().to_vec(), numbers.iter().map(|own| f32::from_le_bytes(*own)).collect()))
}
