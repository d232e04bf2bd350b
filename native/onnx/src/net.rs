//! The graph of a policy while it is built: its weights, its form and its state.

use std::sync::Arc;

use sconce_nn::policy::LEAST_INPUTS;
use sconce_ops::weights::{Coded, Weight, Weights};
use sconce_tensor::simd::non_finite;
use sconce_tensor::tensor::to_vec;
use sconce_tensor::{Error, Result};
use serde::Deserialize;

use crate::graph::{Graph, Value};
use crate::proto::{Attribute, Dim, Type};

/// The form of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// One frame of each game, with the state before it and after it.
    Step,
    /// Several frames of each game.
    Window {
        /// Takes the state before the first frame and returns the state after the last one. Otherwise the games begin
        /// with the first frame.
        state: bool,
    },
}

/// The format of the matrices in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// The codes of matrices that have them, in a byte each; f32 for others and where a group of inputs that share a scale
    /// is cut short. The products are in f32.
    #[default]
    Stored,
    /// 32-bit floats.
    F32,
    /// As `Stored`, and a matrix without codes gets codes of 8 bits with a scale for each output, a quarter of the bytes. One
    /// with fewer than 32 inputs stays in f32, as in a session.
    Int8,
}

impl Form {
    /// Dimensions of a value with `width` numbers for each frame.
    pub(crate) fn of_frames(self, width: usize) -> Vec<Dim> {
        match self {
            Form::Step => vec![BATCH, Dim::Size(width)],
            Form::Window { .. } => vec![BATCH, TIME, Dim::Size(width)],
        }
    }

    fn has_state(self) -> bool {
        matches!(self, Form::Step | Form::Window { state: true })
    }
}

const BATCH: Dim = Dim::Any("batch");
const TIME: Dim = Dim::Any("time");

/// A network under construction. Layers pass rows to each other: `[n, width]`, where n is the number of games in a step
/// and of all frames, game after game, in a window.
pub(crate) struct Net<'a> {
    pub(crate) graph: Graph,
    weights: &'a Weights,
    form: Form,
    format: Format,
    /// Shape of the frames: `[1]` with the batch in a step, `[2]` with batch and time in a window.
    frames: Value,
    next: Vec<(String, Value, Vec<Dim>)>,
}

impl<'a> Net<'a> {
    pub(crate) fn new(weights: &'a Weights, form: Form, format: Format) -> Self {
        let (graph, frames) = (Graph::default(), Value::none());
        Net { graph, weights, form, format, frames, next: vec![] }
    }

    pub(crate) fn form(&self) -> Form {
        self.form
    }

    /// Takes the sizes of batch and time from an input of frames.
    pub(crate) fn measure(&mut self, input: &Value) {
        let dims = if self.form == Form::Step { 1 } else { 2 };
        let ends = [("start", Attribute::Int(0)), ("end", Attribute::Int(dims))];
        self.frames = self.graph.op("Shape", &[input], &ends);
    }

    /// A weight of the policy.
    ///
    /// # Errors
    /// `NotFound` without such a weight, and `Mismatch` for a weight of another shape.
    pub(crate) fn weight(&mut self, path: &str, dims: &[usize]) -> Result<Value> {
        let values = self.values(path, dims)?;
        Ok(self.graph.floats(path, dims, &values))
    }

    /// A weight that is multiplied by vectors, `[outputs, inputs]`, in the format of the model.
    ///
    /// # Errors
    /// As [`weight`](Self::weight), and `NonFinite` for a number that has no code.
    pub(crate) fn matrix(&mut self, path: &str, [rows, cols]: [usize; 2]) -> Result<Value> {
        match self.codes(path, [rows, cols])? {
            Some(codes) => Ok(self.graph.codes(path, &codes)),
            None => self.weight(path, &[rows, cols]),
        }
    }

    /// The codes that a matrix has in the format of the model.
    fn codes(&self, path: &str, dims: [usize; 2]) -> Result<Option<Arc<Coded>>> {
        let own = self.found(path, &dims)?.codes().cloned();
        let codes = match (self.format, own) {
            (Format::Stored | Format::Int8, Some(own)) => Some(own),
            (Format::Int8, None) if dims[1] >= LEAST_INPUTS => {
                let numbers = self.values(path, &dims)?;
                if let Some(value) = non_finite(&numbers) {
                    return Err(Error::NonFinite { what: path.into(), value: value.into() });
                }
                Some(Arc::new(Coded::nearest(8, &numbers, dims[1], dims[1])?))
            }
            _ => None,
        };
        let is_whole =
            |own: &Arc<Coded>| own.groups() == 1 || own.inputs().is_multiple_of(own.group());
        Ok(codes.filter(is_whole))
    }

    fn found(&self, path: &str, dims: &[usize]) -> Result<&'a Weight> {
        let weight =
            self.weights.get(path).ok_or_else(|| Error::not_found(format!("weight {path}")))?;
        if weight.dims() != dims {
            let (expected, got) = (format!("{dims:?}"), format!("{:?}", weight.dims()));
            return Err(Error::mismatch(format!("shape of {path}"), expected, got));
        }
        Ok(weight)
    }

    fn values(&self, path: &str, dims: &[usize]) -> Result<Vec<f32>> {
        Ok(to_vec(self.found(path, dims)?)?)
    }

    /// Rows of an input of frames.
    pub(crate) fn rows(&mut self, x: &Value, width: usize) -> Value {
        match self.form {
            Form::Step => x.clone(),
            Form::Window { .. } => self.graph.reshape(x, &[-1, width as i64]),
        }
    }

    /// Rows in the shape of the frames: `[b, width]` in a step, `[b, t, width]` in a window.
    pub(crate) fn framed(&mut self, rows: &Value, width: usize) -> Value {
        match self.form {
            Form::Step => rows.clone(),
            Form::Window { .. } => {
                let width = self.graph.ints(&[width as i64]);
                let shape = self.graph.concat(&[&self.frames.clone(), &width], 0);
                self.graph.op("Reshape", &[rows, &shape], &[])
            }
        }
    }

    /// Rows as `[t, b, width]`.
    pub(crate) fn by_time(&mut self, rows: &Value, width: usize) -> Value {
        let x = self.framed(rows, width);
        match self.form {
            Form::Step => self.graph.unsqueeze(&x, 0),
            Form::Window { .. } => self.graph.transpose(&x, &[1, 0, 2]),
        }
    }

    /// The inverse of [`by_time`](Self::by_time).
    pub(crate) fn by_game(&mut self, x: &Value, width: usize) -> Value {
        match self.form {
            Form::Step => self.graph.squeeze(x, 0),
            Form::Window { .. } => {
                let x = self.graph.transpose(x, &[1, 0, 2]);
                self.graph.reshape(&x, &[-1, width as i64])
            }
        }
    }

    /// The number of games, `[1]`.
    pub(crate) fn batch(&mut self) -> Value {
        let at = self.graph.ints(&[0]);
        self.graph.gather(&self.frames.clone(), &at, 0)
    }

    /// The number of frames of a window, a scalar.
    pub(crate) fn time(&mut self) -> Value {
        let at = self.graph.integer(1);
        self.graph.gather(&self.frames.clone(), &at, 0)
    }

    /// A part of the state before the first frame, `[b, dims..]`; none in a model whose games begin with that frame.
    pub(crate) fn state(&mut self, path: &str, dims: &[usize]) -> Option<Value> {
        let shape = shape(dims);
        let name = format!("state.{path}");
        self.form.has_state().then(|| self.graph.input(&name, Type::F32, &shape))
    }

    /// Sets a part of the state after the last frame.
    pub(crate) fn set_state(&mut self, path: &str, value: Value, dims: &[usize]) {
        if self.form.has_state() {
            self.next.push((format!("next_state.{path}"), value, shape(dims)));
        }
    }

    /// Ends the graph: `logits [n, width]`, then the parts of the next state.
    pub(crate) fn finish(mut self, logits: &Value, width: usize) -> Result<Graph> {
        let logits = self.framed(logits, width);
        let shape = self.form.of_frames(width);
        self.graph.output("logits", &logits, Type::F32, &shape);
        for (name, value, shape) in std::mem::take(&mut self.next) {
            self.graph.output(&name, &value, Type::F32, &shape);
        }
        let unused = self.weights.keys().find(|path| !self.graph.has_initialiser(path));
        match unused {
            Some(path) => {
                Err(Error::mismatch("weights of a model", "only used ones", path.as_str()))
            }
            None => Ok(self.graph),
        }
    }
}

fn shape(dims: &[usize]) -> Vec<Dim> {
    std::iter::once(BATCH).chain(dims.iter().map(|dim| Dim::Size(*dim))).collect()
}
