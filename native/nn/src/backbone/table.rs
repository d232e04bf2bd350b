//! Every backbone: its name, its config and its constructor. This is the only list of backbones: a new backbone needs a
//! file and a row here.

use serde::{Deserialize, Serialize};

use super::config::*;
// The rows refer to modules of this folder.
use super::*;
use crate::bounds::MAX_STATE;

macro_rules! backbones {
    ($($(#[$meta:meta])* $name:literal $variant:ident($config:ty) = $build:path,)*) => {
        /// A backbone with its config, as in a Spec.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        pub enum Backbone {
            $($(#[$meta])* #[serde(rename = $name)] $variant($config),)*
        }

        impl Backbone {
            /// All names, in the order of the table.
            pub const NAMES: &[&str] = &[$($name),*];

            /// Name, as in files and in Elixir.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Backbone::$variant(_) => $name,)*
                }
            }

            fn config(&self) -> &dyn Config {
                match self {
                    $(Backbone::$variant(config) => config,)*
                }
            }

            /// Builds the network for vectors of width `input`.
            pub(super) fn build(
                &self,
                input: usize,
                b: &Builder,
            ) -> Result<Box<dyn super::Backbone>> {
                Ok(match self {
                    $(Backbone::$variant(config) => Box::new($build(config, input, b)?),)*
                })
            }
        }
    };
}

backbones! {
    /// A multilayer perceptron without memory.
    "mlp" Mlp(MlpConfig) = mlp::Mlp::new,
    /// A stack of LSTM layers.
    "lstm" Lstm(RecurrentConfig) = recurrent::lstm,
    /// A stack of GRU layers.
    "gru" Gru(RecurrentConfig) = recurrent::gru,
    /// A transformer with attention over the last frames.
    "sliding_window" SlidingWindow(AttentionConfig) = attention::transformer,
    /// Mamba: selective state spaces.
    "mamba" Mamba(MambaConfig) = mamba::mamba,
    /// Mamba-2: state spaces with a matrix state and one decay per head.
    "mamba_2" Mamba2(Mamba2Config) = mamba2::Mamba2::stack,
    /// minGRU: a GRU whose gates read only the input.
    "min_gru" MinGru(StackConfig) = min_rnn::min_gru,
    /// minLSTM: an LSTM whose gates read only the input.
    "min_lstm" MinLstm(StackConfig) = min_rnn::min_lstm,
    /// An LSTM followed by attention over its outputs.
    "lstm_hybrid" LstmHybrid(AttentionConfig) = attention::LstmHybrid::new,
    /// Jamba: alternating Mamba and attention layers.
    "jamba" Jamba(JambaConfig) = jamba::jamba,
    /// Griffin: gated linear recurrences and local attention.
    "griffin" Griffin(GriffinConfig) = griffin::griffin,
    /// Hawk: gated linear recurrences.
    "hawk" Hawk(HawkConfig) = griffin::hawk,
    /// Residual LSTM layers, as in slippi-ai.
    "res_lstm" ResLstm(StackConfig) = residual_lstm::res_lstm,
    /// Residual LSTM and feed-forward layers, as in slippi-ai.
    "tx_like" TxLike(ExpandConfig) = residual_lstm::tx_like,
    /// HGRN: gated recurrences with lower-bounded forget gates.
    "hgrn" Hgrn(ExpandConfig) = hgrn::stack,
    /// S4D: diagonal state spaces, one per channel.
    "s4d" S4d(StateConfig) = s4d::s4d,
    /// S5: one diagonal state space for all channels.
    "s5" S5(StateConfig) = s5::stack,
    /// RetNet: retention with a constant decay per head.
    "retnet" Retnet(HeadsConfig) = retnet::Retention::stack,
    /// RWKV-4: a decaying weighted average per channel.
    "rwkv" Rwkv(ExpandConfig) = rwkv::stack,
    /// Gated linear attention.
    "gla" Gla(GlaConfig) = gla::GatedLinearAttention::stack,
    /// xLSTM: alternating mLSTM and sLSTM layers.
    "xlstm" Xlstm(HeadsConfig) = xlstm::stack,
    /// Zamba: Mamba layers with one shared attention block.
    "zamba" Zamba(JambaConfig) = jamba::zamba,
    /// A Mamba layer with one gate and one state per channel.
    "gated_ssm" GatedSsm(HawkConfig) = gated_ssm::gated_ssm,
    /// A causal transformer. Files may contain its former name.
    #[serde(alias = "decision_transformer")]
    "causal_transformer" CausalTransformer(AttentionConfig) = attention::transformer,
    /// The Mamba and the Mamba-2 of ExPhil.
    "exphil_mamba" ExphilMamba(ExphilMambaConfig) = exphil::mamba::mamba,
    /// The gated state space of ExPhil.
    "exphil_gated_ssm" ExphilGatedSsm(ExphilGatedSsmConfig) = exphil::gated_ssm::gated_ssm,
    /// The Jamba of ExPhil.
    "exphil_jamba" ExphilJamba(ExphilJambaConfig) = exphil::jamba::jamba,
    /// Attention with the formulas of ExPhil.
    "exphil_attention" ExphilAttention(ExphilAttentionConfig) = exphil::attention::Transformer::new,
    /// An LSTM followed by attention, with the formulas of ExPhil.
    "exphil_lstm_hybrid" ExphilLstmHybrid(ExphilHybridConfig) = exphil::lstm_hybrid::hybrid,
    /// Residual LSTM layers with the formulas of ExPhil.
    "exphil_deep_res_lstm" ExphilDeepResLstm(ExphilLstmConfig) = exphil::deep_res_lstm::stack,
}

impl Backbone {
    /// Width of the trunk vector that the heads read.
    pub fn output_size(&self, input: usize) -> usize {
        self.config().output_size(input)
    }

    /// True if the backbone processes only whole windows and has no step form.
    pub fn is_window_only(&self) -> bool {
        self.config().window_only()
    }

    /// Returns an error unless the backbone's state can be carried from one step of a game to the next.
    ///
    /// # Errors
    /// `Mismatch` for a window-only backbone.
    pub fn check_carried(&self) -> Result<()> {
        if self.is_window_only() {
            let what = format!("{}, which reads whole windows", self.name());
            return Err(Error::mismatch(what, ":window", ":carry"));
        }
        Ok(())
    }

    /// Checks that every number is in range, before any memory is allocated.
    pub(crate) fn validate(&self) -> Result<()> {
        self.config().validate()?;
        let numbers = self.config().state();
        if numbers <= MAX_STATE {
            return Ok(());
        }
        let bytes = (numbers as u64).saturating_mul(size_of::<f32>() as u64);
        Err(Error::OverLimit {
            what: format!("the state of a {} for one game", self.name()),
            bytes,
            limit: (MAX_STATE * size_of::<f32>()) as u64,
        })
    }
}
