//! Inputs and targets of examples.

use sconce_net::Net;
use sconce_tensor::digest::sha256;
use sconce_tensor::tensor::tensor;
use sconce_tensor::{Error, Result, Tensor, memory};

use super::loss::{Loss, Score};

/// A number of 32 bits, little-endian. The buffers of callers need not be aligned.
type Word = [u8; 4];

/// Examples in the memory of a caller: an input or several, and a target for each.
pub struct Examples<'a> {
    inputs: Vec<Input<'a>>,
    targets: &'a [Word],
    loss: Loss,
    /// The output of the network for an example.
    output: Vec<usize>,
    count: usize,
}

/// An input of all examples.
struct Input<'a> {
    name: String,
    /// The shape for one example.
    shape: Vec<usize>,
    numbers: &'a [Word],
}

impl Input<'_> {
    fn width(&self) -> usize {
        self.shape.iter().product()
    }

    fn of(&self, example: usize) -> &[Word] {
        let width = self.width();
        &self.numbers[example * width..][..width]
    }
}

impl<'a> Examples<'a> {
    /// The examples of a network. `inputs` are in the order of its declaration, numbers of 32 bits `[n, ..]`. Targets are
    /// classes (u32) for [`Loss::CrossEntropy`] and floats otherwise.
    ///
    /// # Errors
    /// `Mismatch` for buffers that do not fit the network or each other, `NonFinite` for a number that is NaN or infinite,
    /// `OutOfRange` for a target that the loss does not have.
    pub fn new(net: &Net, loss: Loss, inputs: &[&'a [u8]], targets: &'a [u8]) -> Result<Self> {
        let declared = &net.spec().inputs;
        if declared.len() != inputs.len() {
            return Err(Error::mismatch("inputs", declared.len(), inputs.len()));
        }
        let inputs = declared.iter().zip(inputs).map(|(input, bytes)| {
            let (name, shape) = (format!("input {}", input.name), input.shape.clone());
            Ok(Input { numbers: words(&name, bytes)?, name, shape })
        });
        let inputs = inputs.collect::<Result<Vec<_>>>()?;
        let output = net.outline().output.clone();
        let count = count(&inputs)?;
        let targets = words("targets", targets)?;
        let examples = Examples { inputs, targets, loss, output, count };
        examples.check()?;
        Ok(examples)
    }

    fn check(&self) -> Result<()> {
        for input in &self.inputs {
            let expected = self.count * input.width();
            if input.numbers.len() != expected {
                let expected = format!("{} examples", self.count);
                let got = format!("{} numbers", input.numbers.len());
                return Err(Error::mismatch(&input.name, expected, got));
            }
            if let Some((at, value)) = non_finite(input.numbers) {
                let what = format!("{} of example {}", input.name, at / input.width());
                return Err(Error::NonFinite { what, value });
            }
        }
        let width = self.target_width();
        if self.targets.len() != self.count * width {
            let expected = format!("{} for {} examples", self.count * width, self.count);
            return Err(Error::mismatch("targets", expected, self.targets.len()));
        }
        let field = |at: usize| format!("target of example {}", at / width);
        for (at, word) in self.targets.iter().enumerate() {
            match self.loss {
                Loss::CrossEntropy => {
                    let (class, last) = (u32::from_le_bytes(*word), self.classes() - 1);
                    if class as usize > last {
                        return Err(Error::out_of_range(field(at), class.into(), 0.0, last as f64));
                    }
                }
                Loss::Binary | Loss::Squared => {
                    let value = f32::from_le_bytes(*word);
                    if !value.is_finite() {
                        return Err(Error::NonFinite { what: field(at), value: value.into() });
                    }
                    if self.loss == Loss::Binary && !(0.0..=1.0).contains(&value) {
                        return Err(Error::out_of_range(field(at), value.into(), 0.0, 1.0));
                    }
                }
            }
        }
        Ok(())
    }

    /// SHA-256 of inputs and targets.
    pub(super) fn digest(&self) -> String {
        let inputs = self.inputs.iter().map(|input| input.numbers);
        sha256(inputs.chain([self.targets]).map(<[Word]>::as_flattened))
    }

    /// Number of examples, at least one.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The loss.
    pub fn loss(&self) -> Loss {
        self.loss
    }

    /// Numbers of an output.
    pub(super) fn output_width(&self) -> usize {
        self.output.iter().product()
    }

    /// The first axis of an output.
    fn classes(&self) -> usize {
        self.output.first().copied().unwrap_or(1).max(1)
    }

    /// Targets of an example: one for each place of the output, or for each number.
    pub(super) fn target_width(&self) -> usize {
        match self.loss {
            Loss::CrossEntropy => self.output_width() / self.classes(),
            Loss::Binary | Loss::Squared => self.output_width(),
        }
    }

    /// The inputs `[b, ..]` of a batch.
    pub(super) fn batch(&self, examples: &[usize]) -> Result<Vec<Tensor>> {
        let inputs = self.inputs.iter().map(|input| {
            let mut numbers = memory::with_capacity(examples.len() * input.width());
            for example in examples {
                numbers.extend(input.of(*example).iter().map(|word| f32::from_le_bytes(*word)));
            }
            let shape = [&[examples.len()], &input.shape[..]].concat();
            Ok(tensor(numbers, shape)?)
        });
        inputs.collect()
    }

    /// Buffers for [`read`](Self::read).
    pub(super) fn buffers(&self) -> Vec<Vec<f32>> {
        self.inputs.iter().map(|input| memory::zeros(input.width())).collect()
    }

    /// Writes the inputs of an example into [`buffers`](Self::buffers).
    pub(super) fn read(&self, example: usize, buffers: &mut [Vec<f32>]) {
        for (input, buffer) in self.inputs.iter().zip(buffers) {
            for (number, word) in buffer.iter_mut().zip(input.of(example)) {
                *number = f32::from_le_bytes(*word);
            }
        }
    }

    /// The loss of an output. Adds to `score`, and writes `scale` times the gradient if there is a buffer for it.
    pub(super) fn score(
        &self,
        example: usize,
        output: &[f32],
        gradient: Option<(&mut [f32], f64)>,
        score: &mut Score,
    ) {
        let width = self.target_width();
        let targets = &self.targets[example * width..][..width];
        match self.loss {
            Loss::CrossEntropy => score.classes(targets, output, gradient),
            Loss::Binary => score.bits(targets, output, gradient),
            Loss::Squared => score.squares(targets, output, gradient),
        }
    }
}

fn words<'a>(what: &str, bytes: &'a [u8]) -> Result<&'a [Word]> {
    match bytes.as_chunks() {
        (words, []) => Ok(words),
        _ => Err(Error::mismatch(what, "numbers of 4 bytes", format!("{} bytes", bytes.len()))),
    }
}

/// The number of examples of the first input.
fn count(inputs: &[Input<'_>]) -> Result<usize> {
    let Some(first) = inputs.first() else { return Err(Error::not_found("an input")) };
    let width = first.width().max(1);
    match (first.numbers.len() / width, first.numbers.len() % width) {
        (0, 0) => Err(Error::mismatch(&first.name, "an example or more", "none")),
        (count, 0) => Ok(count),
        _ => {
            let expected = format!("a multiple of {width} numbers");
            Err(Error::mismatch(&first.name, expected, first.numbers.len()))
        }
    }
}

fn non_finite(words: &[Word]) -> Option<(usize, f64)> {
    let mut numbers = words.iter().map(|word| f32::from_le_bytes(*word)).enumerate();
    numbers.find(|(_, number)| !number.is_finite()).map(|(at, number)| (at, number.into()))
}
