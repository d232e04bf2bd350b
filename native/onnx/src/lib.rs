//! Policies as files of [ONNX](https://onnx.ai), which other runtimes execute.
//!
//! A model computes the logits of [`Policy::forward`](sconce_nn::Policy::forward) with ops of the standard alone, opset
//! 17. Its initialisers have the names, shapes and values of the checkpoint's weights. A backbone is written as layers of
//! ONNX from the Spec, so each that is supported has a test beside ONNX Runtime.
#![warn(unreachable_pub)]

mod backbone;
mod embedding;
mod graph;
mod heads;
mod layers;
mod net;
mod proto;

use std::path::Path;

pub use backbone::BACKBONES;
pub use graph::Port;
pub use net::{Form, Format};
pub use proto::Dim;
use sconce_nn::Policy;
use sconce_tensor::{Device, Error, Result, fs};

use crate::layers::dense::linear;
use crate::net::Net;

/// The largest message of Protocol Buffers, in bytes.
const MAX_BYTES: u64 = i32::MAX as u64;

/// A policy as a model of ONNX.
#[derive(Debug, Clone)]
pub struct Model {
    bytes: Vec<u8>,
    /// The inputs, in their order.
    pub inputs: Vec<Port>,
    /// The outputs, in their order: `logits`, then the parts of the next state in the order of the inputs.
    pub outputs: Vec<Port>,
}

impl Model {
    /// Translates a policy.
    ///
    /// # Errors
    /// `Mismatch` for a backbone that is not one of [`BACKBONES`], `OverLimit` for a model of 2 GiB or more.
    pub fn new(policy: &Policy, form: Form, format: Format) -> Result<Self> {
        if !policy.device().is_cpu() {
            return Self::new(&policy.copy_on(&Device::Cpu)?, form, format);
        }
        if format == Format::F32 {
            check_size(policy.num_weights() as u64 * size_of::<f32>() as u64)?;
        }
        graph::check_room(policy.num_weights())?;
        let spec = policy.spec();
        let mut net = Net::new(policy.weights(), form, format);
        let x = embedding::embed(&mut net, spec)?;
        let width = spec.embedding.width();
        let trunk = backbone::backbone(&mut net, "backbone", &spec.backbone, &x, width)?;
        let value = match &spec.critic {
            None => None,
            Some(of) => {
                let trunk = backbone::backbone(&mut net, "critic.backbone", of, &x, width)?;
                Some(linear(&mut net, "critic.value", &trunk, [of.output_size(width), 1])?)
            }
        };
        let logits = heads::heads(&mut net, spec, &trunk, policy.trunk_width(), value)?;
        let graph = net.finish(&logits, spec.heads.num_logits())?;
        let [inputs, outputs] = graph.ports();
        let text = serde_json::to_string(spec)
            .map_err(|error| Error::corrupt("the Spec of a policy", error))?;
        let graph = graph.into_message("policy");
        let bytes = proto::model(&[("sconce.spec", &text)], &graph).into_bytes();
        check_size(bytes.len() as u64)?;
        Ok(Model { bytes, inputs, outputs })
    }

    /// The bytes of the file.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Writes the file; at any moment `path` is the old file or the whole new one.
    ///
    /// # Errors
    /// `NotFound` for a folder that does not exist, `Io` for a path that cannot be written, `Mismatch` for one that is not
    /// a regular file.
    pub fn write(&self, path: &Path) -> Result<()> {
        fs::write_file(path, &self.bytes)
    }
}

fn check_size(bytes: u64) -> Result<()> {
    match bytes > MAX_BYTES {
        true => Err(Error::OverLimit { what: "a model in ONNX".into(), bytes, limit: MAX_BYTES }),
        false => Ok(()),
    }
}
