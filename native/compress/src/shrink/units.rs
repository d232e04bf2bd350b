//! The units of a policy that a number of its Spec counts, and the weights that hold them.

use sconce_nn::Spec;
use sconce_nn::policy::Policy;
use sconce_nn::spec::{AttentionConfig, Backbone, MlpConfig};
use sconce_ops::weights::Weights;
use sconce_tensor::{Error, Result};

/// Ratio of a transformer's feed-forward width to its `hidden_size`.
const FEED_FORWARD: usize = 4;

/// The numbers of a Spec that count units.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sizes {
    /// The widths of an MLP's layers, or one `hidden_size`.
    pub widths: Vec<usize>,
    /// Heads of attention; 0 for other backbones.
    pub num_heads: usize,
}

/// The number of a Spec that counts some units.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Number {
    /// A width, times this factor.
    Width { index: usize, factor: usize },
    /// The number of heads.
    Heads,
}

impl Sizes {
    /// # Errors
    /// `Unavailable` for a backbone that has no such numbers.
    pub(super) fn of(backbone: &Backbone) -> Result<Self> {
        let (widths, num_heads) = match backbone {
            Backbone::Mlp(own) => (own.hidden_sizes.clone(), 0),
            Backbone::Gru(own) | Backbone::Lstm(own) if own.initial_state => {
                return Err(unavailable(backbone, "its initial state is stored"));
            }
            Backbone::Gru(own) | Backbone::Lstm(own) => (vec![own.hidden_size], 0),
            Backbone::MinGru(own) | Backbone::MinLstm(own) => (vec![own.hidden_size], 0),
            Backbone::SlidingWindow(own) | Backbone::CausalTransformer(own) => {
                (vec![own.hidden_size], own.num_heads)
            }
            other => {
                let reason = "no number of its Spec counts units that can be removed one by one";
                return Err(unavailable(other, reason));
            }
        };
        Ok(Sizes { widths, num_heads })
    }

    pub(super) fn count(&self, number: Number) -> usize {
        match number {
            Number::Width { index, factor } => self.widths.get(index).map_or(0, |n| n * factor),
            Number::Heads => self.num_heads,
        }
    }

    /// The Spec with these numbers.
    pub(super) fn put(&self, spec: &Spec) -> Spec {
        let mut spec = spec.clone();
        let width = self.widths.first().copied().unwrap_or(0);
        match &mut spec.backbone {
            Backbone::Mlp(own) => own.hidden_sizes.clone_from(&self.widths),
            Backbone::Gru(own) | Backbone::Lstm(own) => own.hidden_size = width,
            Backbone::MinGru(own) | Backbone::MinLstm(own) => own.hidden_size = width,
            Backbone::SlidingWindow(own) | Backbone::CausalTransformer(own) => {
                (own.hidden_size, own.num_heads) = (width, self.num_heads);
            }
            _ => {}
        }
        spec
    }

    /// Refuses numbers with which the network has other layers than with those of `spec`.
    ///
    /// # Errors
    /// `OutOfRange` for a number that is 0 or above that of the Spec, `Mismatch` for another number of layers, for widths
    /// with which a skip gains or loses its projection, and for the width of an embedded frame.
    pub(super) fn check(&self, spec: &Spec) -> Result<()> {
        let before = Sizes::of(&spec.backbone)?;
        let (least, most) = (1, |n: usize| n as f64);
        if self.widths.len() != before.widths.len() {
            let expected = format!("{} widths", before.widths.len());
            return Err(Error::mismatch("hidden_sizes", expected, self.widths.len()));
        }
        let name = match &spec.backbone {
            Backbone::Mlp(_) => "hidden_sizes",
            _ => "hidden_size",
        };
        for (width, before) in self.widths.iter().zip(&before.widths) {
            if !(least..=*before).contains(width) {
                return Err(Error::out_of_range(name, most(*width), 1.0, most(*before)));
            }
        }
        let least = before.num_heads.min(1);
        if !(least..=before.num_heads).contains(&self.num_heads) {
            let (least, before) = (most(least), most(before.num_heads));
            return Err(Error::out_of_range("num_heads", most(self.num_heads), least, before));
        }
        let input = spec.embedding.width();
        match &spec.backbone {
            Backbone::Mlp(own) if own.residual => {
                let same = |widths: &[usize]| -> Vec<bool> {
                    widths.windows(2).map(|pair| pair.first() == pair.last()).collect()
                };
                if same(&self.widths) != same(&before.widths) {
                    let expected =
                        "equal widths where those of the policy are equal, and nowhere else";
                    return Err(Error::mismatch(
                        "hidden_sizes",
                        expected,
                        format!("{:?}", self.widths),
                    ));
                }
            }
            Backbone::Mlp(_) | Backbone::Gru(_) | Backbone::Lstm(_) => {}
            _ if before.widths != self.widths && self.widths.contains(&input) => {
                let expected = format!("another number than the width of a frame, {input}");
                return Err(Error::mismatch("hidden_size", expected, input));
            }
            _ => {}
        }
        Ok(())
    }
}

/// How a weight holds units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Its rows compute them.
    Writes,
    /// Its columns read them.
    Reads,
    /// It has numbers of each, such as a bias or a norm.
    Follows,
}

/// A weight that holds units along an axis: `blocks` times one after the other, with `width` numbers of each.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Slot {
    pub weight: String,
    pub role: Role,
    pub axis: usize,
    pub blocks: usize,
    pub width: usize,
}

impl Slot {
    /// The places of unit `unit` of `count` along the axis.
    pub(super) fn places(&self, unit: usize, count: usize) -> impl Iterator<Item = usize> {
        let width = self.width;
        (0..self.blocks).flat_map(move |block| {
            let first = (block * count + unit) * width;
            first..first + width
        })
    }
}

/// Units that are removed from all their weights at once.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Units {
    pub name: String,
    pub count: usize,
    pub number: Number,
    pub slots: Vec<Slot>,
}

impl Units {
    fn new(name: String, number: Number, sizes: &Sizes) -> Self {
        Units { name, count: sizes.count(number), number, slots: vec![] }
    }

    fn slot(&mut self, weight: String, role: Role, [axis, blocks, width]: [usize; 3]) {
        self.slots.push(Slot { weight, role, axis, blocks, width });
    }

    /// A dense layer that computes the units in `blocks`; its bias follows.
    fn written(&mut self, layer: &str, blocks: usize, width: usize) {
        self.slot(format!("{layer}.weight"), Role::Writes, [0, blocks, width]);
        self.slot(format!("{layer}.bias"), Role::Follows, [0, blocks, width]);
    }

    fn read(&mut self, layer: &str) {
        self.slot(format!("{layer}.weight"), Role::Reads, [1, 1, 1]);
    }

    fn normed(&mut self, norm: &str) {
        self.slot(format!("{norm}.weight"), Role::Follows, [0, 1, 1]);
        self.slot(format!("{norm}.bias"), Role::Follows, [0, 1, 1]);
    }

    pub(super) fn readers(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter(|slot| slot.role == Role::Reads)
    }
}

/// The units of a policy.
///
/// # Errors
/// `Unavailable` for a backbone without units that can be removed.
pub(super) fn of(policy: &Policy) -> Result<Vec<Units>> {
    let (spec, weights) = (policy.spec(), policy.weights());
    let sizes = Sizes::of(&spec.backbone)?;
    let mut all = match &spec.backbone {
        Backbone::Mlp(own) => mlp(own, &sizes),
        Backbone::Gru(own) => recurrent(3, own.num_layers, &sizes),
        Backbone::Lstm(own) => recurrent(4, own.num_layers, &sizes),
        Backbone::MinGru(own) => min_rnn(&["linear_z", "linear_h"], own.num_layers, &sizes),
        Backbone::MinLstm(own) => {
            min_rnn(&["linear_f", "linear_i", "linear_h"], own.num_layers, &sizes)
        }
        Backbone::SlidingWindow(own) | Backbone::CausalTransformer(own) => attention(own, &sizes),
        _ => vec![],
    };
    let is_stack =
        !matches!(&spec.backbone, Backbone::Mlp(_) | Backbone::Gru(_) | Backbone::Lstm(_));
    if is_stack && sizes.widths.contains(&spec.embedding.width()) {
        let reason =
            "its hidden_size is the width of an embedded frame, whose numbers cannot be removed";
        return Err(unavailable(&spec.backbone, reason));
    }
    // The heads read the units of the last layer, which an MLP lists last and other backbones first or last.
    let last = match &spec.backbone {
        Backbone::Gru(_) | Backbone::Lstm(_) | Backbone::Mlp(_) => all.last_mut(),
        _ => all.first_mut(),
    };
    if let Some(last) = last {
        for layer in readers(spec, weights) {
            last.read(&layer);
        }
    }
    // Norms and biases are optional.
    for units in &mut all {
        units.slots.retain(|slot| weights.contains_key(&slot.weight));
    }
    Ok(all)
}

fn unavailable(backbone: &Backbone, reason: &str) -> Error {
    Error::Unavailable { what: format!("shrink of a {}", backbone.name()), reason: reason.into() }
}

/// The layers of the heads that read the trunk vector.
fn readers(spec: &Spec, weights: &Weights) -> Vec<String> {
    let hidden = spec.heads.parts.iter().map(|part| format!("heads.{}_hidden", part.name));
    let all = ["heads.logits".to_owned(), "heads.stream_in".to_owned()].into_iter().chain(hidden);
    all.filter(|layer| weights.contains_key(&format!("{layer}.weight"))).collect()
}

/// Layers of one width in a row share their units if a skip adds them.
fn mlp(own: &MlpConfig, sizes: &Sizes) -> Vec<Units> {
    let mut all: Vec<Units> = vec![];
    let mut width = None;
    for (i, size) in own.hidden_sizes.iter().enumerate() {
        let layer = format!("backbone.layers.{i}");
        if let Some(before) = all.last_mut() {
            before.read(&format!("{layer}.dense"));
            before.read(&format!("{layer}.proj"));
        }
        let is_apart = !own.residual || i == 0 || width != Some(*size);
        if is_apart {
            all.push(Units::new(layer.clone(), Number::Width { index: i, factor: 1 }, sizes));
        }
        if let Some(units) = all.last_mut() {
            units.written(&format!("{layer}.dense"), 1, 1);
            units.written(&format!("{layer}.proj"), 1, 1);
            units.normed(&format!("{layer}.norm"));
        }
        width = Some(*size);
    }
    all
}

fn recurrent(gates: usize, num_layers: usize, sizes: &Sizes) -> Vec<Units> {
    let layer = |i: usize| {
        let number = Number::Width { index: 0, factor: 1 };
        let mut units = Units::new(format!("backbone.l{i}"), number, sizes);
        for part in ["ih", "hh"] {
            let weight = |kind: &str| format!("backbone.{kind}_{part}_l{i}");
            units.slot(weight("weight"), Role::Writes, [0, gates, 1]);
            units.slot(weight("bias"), Role::Follows, [0, gates, 1]);
        }
        units.normed(&format!("backbone.norms.{i}"));
        for reader in [format!("hh_l{i}"), format!("ih_l{}", i + 1)] {
            units.slot(format!("backbone.weight_{reader}"), Role::Reads, [1, 1, 1]);
        }
        units
    };
    (0..num_layers).map(layer).collect()
}

/// The residual stream, with the norms at its end and the dense layer at its begin.
fn stream(sizes: &Sizes) -> Units {
    let number = Number::Width { index: 0, factor: 1 };
    let mut units = Units::new("backbone".into(), number, sizes);
    units.written("backbone.input", 1, 1);
    units.normed("backbone.norm");
    units
}

/// A cell adds its state to the stream, so all layers have the units of the stream.
fn min_rnn(parts: &[&str], num_layers: usize, sizes: &Sizes) -> Vec<Units> {
    let mut units = stream(sizes);
    for i in 0..num_layers {
        units.normed(&format!("backbone.layers.{i}.norm"));
        for part in parts {
            let layer = format!("backbone.layers.{i}.cell.{part}");
            units.written(&layer, 1, 1);
            units.read(&layer);
        }
    }
    vec![units]
}

/// The stream, then the heads and the feed-forward units of each layer.
fn attention(own: &AttentionConfig, sizes: &Sizes) -> Vec<Units> {
    let mut all = vec![stream(sizes)];
    for i in 0..own.num_layers {
        let layer = |part: &str| format!("backbone.layers.{i}.{part}");
        if let Some(units) = all.first_mut() {
            for part in ["norm1", "norm2"] {
                units.normed(&layer(part));
            }
            for part in ["qkv", "ffn1"] {
                units.read(&layer(part));
            }
            for part in ["out", "ffn2"] {
                units.written(&layer(part), 1, 1);
            }
        }
        let mut heads = Units::new(layer("heads"), Number::Heads, sizes);
        heads.written(&layer("qkv"), 3, own.head_dim);
        heads.slot(layer("out.weight"), Role::Reads, [1, 1, own.head_dim]);
        let inner = Number::Width { index: 0, factor: FEED_FORWARD };
        let mut inner = Units::new(layer("ffn1"), inner, sizes);
        inner.written(&layer("ffn1"), 1, 1);
        inner.read(&layer("ffn2"));
        all.extend([heads, inner]);
    }
    all
}
