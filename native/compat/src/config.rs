//! The Spec that a config of ExPhil describes, and what it does not say.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Display;

use sconce_nn::spec::{
    Backbone, Embedding, ExphilAttentionConfig, ExphilGatedSsmConfig, ExphilHybridConfig,
    ExphilJambaConfig, ExphilLstmConfig, ExphilMambaConfig, Heads, HeadsKind, Melee, MlpConfig,
    NormEps, RecurrentConfig, StackConfig,
};
use serde_json::{Map, Value};

use crate::layers::Layers;
use crate::names::{KNOWN, Variant};
use crate::term::Term;
use crate::{Error, Result, Spec};

/// A config: names and values.
pub type Config = Map<String, Value>;

/// A policy as a file describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct Described {
    /// The policy.
    pub spec: Spec,
    /// The names of its parameters.
    pub variant: Variant,
    /// Frames that the policy reads at once in play.
    pub window_size: usize,
    /// Assumptions, because a file does not say everything.
    pub notes: Vec<String>,
}

/// Sizes of the axes and the shoulder that Sconce's controller has.
const BUCKETS: [(&str, usize); 2] = [("axis_buckets", 16), ("shoulder_buckets", 4)];
/// Constant that ExPhil's norms beside LSTM and GRU add to the variance.
const NORM_EPS: f32 = 1e-6;
/// Inner width of the feed-forward layers of ExPhil's attention.
const INNER_SIZE: usize = 256;
/// Values that no export names. Notes of their own say what was assumed.
const UNNAMED: [&str; 4] = ["axis_size", "training_mode", "chunk_size", "attention_every"];
/// Width of the one-hot of the frame delay.
pub(crate) const NUM_DELAYS: usize = 9;

/// Converts a config's term to names and values. Funs and other terms without a value become their kind's name.
///
/// # Errors
/// A text, unless the term is a map whose keys are text.
pub fn of_term(term: &Term) -> std::result::Result<Config, String> {
    match value(term) {
        Value::Object(config) => Ok(config),
        _ => Err(format!("expected a map as config, got {term}")),
    }
}

fn value(term: &Term) -> Value {
    match term {
        Term::Integer(n) => (*n).into(),
        Term::Float(x) => (*x).into(),
        Term::Atom(name) => match &**name {
            "nil" => Value::Null,
            "true" => true.into(),
            "false" => false.into(),
            name => name.into(),
        },
        Term::Tuple(all) | Term::List(all) => all.iter().map(value).collect(),
        Term::Map(pairs) => {
            let own = |(key, of): &(Term, Term)| Some((key.text()?.to_string(), value(of)));
            pairs.iter().map(own).collect::<Option<Config>>().map_or(Value::Null, Value::Object)
        }
        Term::Binary(_) | Term::Opaque(_) => {
            term.text().map_or_else(|| term.to_string().into(), Value::from)
        }
    }
}

/// Describes the policy of a config and its parameters.
///
/// # Errors
/// `Mismatch` or `OutOfRange` with the name in the config, for a policy that Sconce does not have or a wrong value.
///
/// With `zero_state` LSTM and GRU start from zeros instead of the states that Axon draws.
pub fn describe(config: &Config, layers: &Layers, zero_state: bool) -> Result<Described> {
    let assumed = RefCell::default();
    Reader { config, layers, zero_state, assumed, notes: vec![] }.describe()
}

struct Reader<'c> {
    config: &'c Config,
    layers: &'c Layers,
    zero_state: bool,
    /// Values that the config does not name.
    assumed: RefCell<BTreeSet<String>>,
    notes: Vec<String>,
}

impl Reader<'_> {
    fn describe(mut self) -> Result<Described> {
        self.refuse()?;
        let embedding = self.embedding()?;
        let window_size = self.size("window_size", 60)?;
        let temporal = self.flag("temporal", true)?;
        let name = match self.config.get("backbone") {
            _ if !temporal => "mlp",
            Some(Value::String(name)) => name,
            Some(Value::Null) | None => return Err(Error::not_found("backbone in the config")),
            Some(other) => return Err(Error::mismatch("backbone", "a name", other)),
        };
        let (backbone, variant) = self.backbone(name)?;
        let heads = Heads::controller(HeadsKind::Independent);
        let spec = Spec { embedding, backbone, heads, critic: None };
        spec.validate()?;
        self.check_heads(&spec)?;
        let rate = self.config.get("dropout").and_then(Value::as_f64).unwrap_or(0.0);
        if rate > 0.0 {
            let note =
                format!("dropout: 0.0 instead of {rate}, which has no effect in ExPhil's training");
            self.notes.push(note);
        }
        let window_size = if temporal { window_size } else { 1 };
        self.notes.extend(self.assumed.take());
        Ok(Described { spec, variant, window_size, notes: self.notes })
    }

    /// Refuses what no file of ExPhil can say exactly, or what Sconce does not have.
    fn refuse(&self) -> Result<()> {
        let absent = |name: &str| matches!(self.config.get(name), None | Some(Value::Null));
        for name in ["kmeans_centers", "kmeans_centers_tensor"] {
            if !absent(name) {
                return Err(Error::mismatch(name, "nil", "sticks of K-means"));
            }
        }
        for (name, buckets) in BUCKETS {
            let got = self.size(name, buckets)?;
            if got != buckets {
                return Err(Error::mismatch(name, buckets, got));
            }
        }
        let classes = self.size("axis_size", 17)?;
        if classes != 17 {
            return Err(Error::mismatch("axis_size", 17, classes));
        }
        for (name, known) in [("activation", "relu"), ("scan_mode", "parallel")] {
            let given = self.config.get(name).filter(|given| !given.is_null());
            if let Some(given) = given.filter(|given| given.as_str() != Some(known)) {
                return Err(Error::mismatch(name, format!(":{known}"), given));
            }
        }
        match self.flag("training_mode", false)? {
            true => Err(Error::mismatch("training_mode", false, true)),
            false => Ok(()),
        }
    }

    fn embedding(&mut self) -> Result<Embedding> {
        let queue_depth = self.size("queue_depth", 1)?;
        let num_delays = if self.flag("with_delay_id", false)? { NUM_DELAYS } else { 0 };
        let previous_action = self.flag("use_prev_action", false)?;
        let melee = Melee { queue_depth, num_delays, previous_action, ..Melee::packed() };
        let embedding = Embedding::melee(melee);
        let (width, own) = (self.size("embed_size", 288)?, embedding.width());
        if width != own {
            let expected = format!("{own} for queue_depth: {queue_depth} and {num_delays} delays");
            return Err(Error::mismatch("embed_size", expected, width));
        }
        let note = "player port 1: a file does not name it, and projectiles hold the owner's port";
        self.notes.push(note.into());
        Ok(embedding)
    }

    fn backbone(&mut self, name: &str) -> Result<(Backbone, Variant)> {
        let mut variant = Variant::default();
        let backbone = match name {
            "mlp" => Backbone::Mlp(self.mlp()?),
            "lstm" | "gru" => {
                variant.fused = self.layers.has(&format!("{name}_1_input_proj.kernel"));
                let config = self.recurrent(variant)?;
                if name == "lstm" { Backbone::Lstm(config) } else { Backbone::Gru(config) }
            }
            "min_gru" => Backbone::MinGru(self.stack()?),
            "min_lstm" => Backbone::MinLstm(self.stack()?),
            "mamba" | "mamba_2" | "mamba_ssd" => {
                variant.ssd = name != "mamba";
                Backbone::ExphilMamba(self.mamba(variant)?)
            }
            "gated_ssm" => Backbone::ExphilGatedSsm(self.gated_ssm()?),
            "jamba" => Backbone::ExphilJamba(self.jamba()?),
            "sliding_window" | "attention" => Backbone::ExphilAttention(self.attention()?),
            "lstm_hybrid" => Backbone::ExphilLstmHybrid(self.lstm_hybrid()?),
            "deep_res_lstm" => Backbone::ExphilDeepResLstm(self.deep_res_lstm()?),
            other => {
                let known = format!("one of {}", KNOWN.join(", "));
                return Err(Error::mismatch("backbone", known, other));
            }
        };
        Ok((backbone, variant))
    }

    fn mlp(&mut self) -> Result<MlpConfig> {
        let sizes = self.config.get("hidden_sizes").and_then(Value::as_array);
        let sizes = sizes.ok_or_else(|| Error::not_found("hidden_sizes in the config"))?;
        let size = |of: &Value| of.as_u64().and_then(|n| usize::try_from(n).ok());
        let hidden_sizes = sizes
            .iter()
            .map(|of| size(of).ok_or_else(|| Error::mismatch("hidden_sizes", "sizes", of)));
        self.notes.push("activation: relu, because an export does not name it".into());
        Ok(MlpConfig {
            hidden_sizes: hidden_sizes.collect::<Result<_>>()?,
            layer_norm: self.layers.has("backbone_ln_0.gamma"),
            residual: self.layers.has("backbone_proj_0.kernel"),
            activation: Default::default(),
            dropout: 0.0,
            input_dropout: 0.0,
        })
    }

    /// Whether a policy starts from states that Axon draws. The fused kernels start from zeros.
    fn draws(&mut self, cell: &str, variant: Variant) -> bool {
        let draws = !self.zero_state && !variant.fused;
        if draws {
            let note =
                format!("{cell} starts from the states that Axon draws for one game at a time");
            self.notes.push(note);
        }
        draws
    }

    fn recurrent(&mut self, variant: Variant) -> Result<RecurrentConfig> {
        Ok(RecurrentConfig {
            hidden_size: self.size("hidden_size", 256)?,
            num_layers: self.size("num_layers", 2)?,
            layer_norm: true,
            input_norm: true,
            norm_eps: NormEps(NORM_EPS),
            initial_state: self.draws("the memory", variant),
            ..Default::default()
        })
    }

    fn stack(&self) -> Result<StackConfig> {
        let (hidden_size, num_layers) =
            (self.size("hidden_size", 256)?, self.size("num_layers", 2)?);
        Ok(StackConfig { hidden_size, num_layers, ..Default::default() })
    }

    fn mamba(&mut self, variant: Variant) -> Result<ExphilMambaConfig> {
        let (window, chunk) = (self.size("window_size", 60)?, self.size("chunk_size", 32)?);
        let decays_input = variant.ssd && window <= chunk;
        if variant.ssd {
            let note = format!(
                "chunk_size {chunk}: a window of {window} frames decides the formula of ExPhil's Mamba-2"
            );
            self.notes.push(note);
        } else {
            let note = "the mean of all steps, as ExPhil computes without its GPU kernel, which a file does not name";
            self.notes.push(note.into());
        }
        Ok(ExphilMambaConfig {
            hidden_size: self.size("hidden_size", 256)?,
            num_layers: self.size("num_layers", 2)?,
            state_size: self.size("state_size", 16)?,
            expand_factor: self.size("expand_factor", 2)?,
            conv_size: self.size("conv_size", 4)?,
            decays_input,
            ..Default::default()
        })
    }

    fn gated_ssm(&self) -> Result<ExphilGatedSsmConfig> {
        Ok(ExphilGatedSsmConfig {
            hidden_size: self.size("hidden_size", 256)?,
            num_layers: self.size("num_layers", 2)?,
            state_size: self.size("state_size", 16)?,
            expand_factor: self.size("expand_factor", 2)?,
            conv_size: self.size("conv_size", 4)?,
            ..Default::default()
        })
    }

    fn jamba(&mut self) -> Result<ExphilJambaConfig> {
        let attention_every = self.size("attention_every", 3)?;
        if !self.config.contains_key("attention_every") {
            self.notes.push("attention_every 3, because an export does not name it".into());
        }
        Ok(ExphilJambaConfig {
            hidden_size: self.size("hidden_size", 256)?,
            num_layers: self.size("num_layers", 2)?,
            state_size: self.size("state_size", 16)?,
            expand_factor: self.size("expand_factor", 2)?,
            conv_size: self.size("conv_size", 4)?,
            attention_every,
            num_heads: self.size("num_heads", 4)?,
            head_dim: self.size("head_dim", 64)?,
            ..Default::default()
        })
    }

    fn attention(&self) -> Result<ExphilAttentionConfig> {
        let (num_heads, head_dim) = (self.size("num_heads", 4)?, self.size("head_dim", 64)?);
        Ok(ExphilAttentionConfig {
            hidden_size: num_heads.saturating_mul(head_dim),
            num_layers: self.size("num_layers", 2)?,
            num_heads,
            head_dim,
            window_size: self.size("window_size", 60)?,
            inner_size: INNER_SIZE,
            ..Default::default()
        })
    }

    fn lstm_hybrid(&mut self) -> Result<ExphilHybridConfig> {
        Ok(ExphilHybridConfig {
            hidden_size: self.size("hidden_size", 256)?,
            num_layers: self.size("num_layers", 1)?,
            num_heads: self.size("num_heads", 4)?,
            head_dim: self.size("head_dim", 64)?,
            window_size: self.size("window_size", 60)?,
            initial_state: self.draws("the LSTM", Variant::default()),
            input_norm: true,
            ..Default::default()
        })
    }

    fn deep_res_lstm(&mut self) -> Result<ExphilLstmConfig> {
        Ok(ExphilLstmConfig {
            hidden_size: self.size("hidden_size", 256)?,
            num_layers: self.size("num_layers", 2)?,
            initial_state: self.draws("the LSTM", Variant::default()),
            ..Default::default()
        })
    }

    /// Refuses heads that read the earlier choices, which only their widths tell.
    fn check_heads(&self, spec: &Spec) -> Result<()> {
        let trunk = spec.backbone.output_size(spec.embedding.width());
        // The first stick would read the eight buttons, too.
        let read = self.layers.get("main_x_hidden.kernel").and_then(|own| own.shape.first());
        match read.is_some_and(|read| *read == trunk + 8) {
            true => {
                Err(Error::mismatch("heads", "independent heads", "autoregressive heads of ExPhil"))
            }
            false => Ok(()),
        }
    }

    fn assume(&self, name: &str, default: impl Display) {
        if !UNNAMED.contains(&name) {
            let note = format!("{name} {default}, because the config does not name it");
            self.assumed.borrow_mut().insert(note);
        }
    }

    fn size(&self, name: &str, default: usize) -> Result<usize> {
        match self.config.get(name) {
            None | Some(Value::Null) => {
                self.assume(name, default);
                Ok(default)
            }
            Some(own) => {
                let size = own.as_u64().and_then(|n| usize::try_from(n).ok());
                size.ok_or_else(|| Error::mismatch(name, "a size", own))
            }
        }
    }

    fn flag(&self, name: &str, default: bool) -> Result<bool> {
        match self.config.get(name) {
            None | Some(Value::Null) => {
                self.assume(name, default);
                Ok(default)
            }
            Some(own) => own.as_bool().ok_or_else(|| Error::mismatch(name, "true or false", own)),
        }
    }
}
