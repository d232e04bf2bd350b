//! Every backbone: its name, its config and what builds it. This is the one list of them: a new one is a file and a row.

use serde::{Deserialize, Serialize};

use super::config::*;
// Rows name files of this folder.
use super::*;
use crate::bounds::MAX_STATE;

macro_rules! backbones {
    ($($(#[$meta:meta])* $name:literal $variant:ident($config:ty) = $build:path,)*) => {
        /// How vectors become memory.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        pub enum Backbone {
            $($(#[$meta])* #[serde(rename = $name)] $variant($config),)*
        }

        impl Backbone {
            /// All names, in the order of the table.
            pub const NAMES: &[&str] = &[$($name),*];

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

            /// The network, which reads vectors of `input` numbers.
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
    "mlp" Mlp(MlpConfig) = mlp::Mlp::new,
    "lstm" Lstm(RecurrentConfig) = recurrent::lstm,
    "gru" Gru(RecurrentConfig) = recurrent::gru,
    "sliding_window" SlidingWindow(AttentionConfig) = attention::transformer,
    "mamba" Mamba(MambaConfig) = mamba::mamba,
    "mamba_2" Mamba2(Mamba2Config) = mamba2::Mamba2::stack,
    "min_gru" MinGru(StackConfig) = min_rnn::min_gru,
    "min_lstm" MinLstm(StackConfig) = min_rnn::min_lstm,
    "lstm_hybrid" LstmHybrid(AttentionConfig) = attention::LstmHybrid::new,
    "jamba" Jamba(JambaConfig) = jamba::jamba,
    "griffin" Griffin(GriffinConfig) = griffin::griffin,
    "hawk" Hawk(HawkConfig) = griffin::hawk,
    "res_lstm" ResLstm(StackConfig) = residual_lstm::res_lstm,
    "tx_like" TxLike(ExpandConfig) = residual_lstm::tx_like,
    "hgrn" Hgrn(ExpandConfig) = hgrn::stack,
    "s4d" S4d(StateConfig) = s4d::s4d,
    "s5" S5(StateConfig) = s5::stack,
    "retnet" Retnet(HeadsConfig) = retnet::Retention::stack,
    "rwkv" Rwkv(ExpandConfig) = rwkv::stack,
    "gla" Gla(GlaConfig) = gla::GatedLinearAttention::stack,
    "xlstm" Xlstm(HeadsConfig) = xlstm::stack,
    "zamba" Zamba(JambaConfig) = jamba::zamba,
    "gated_ssm" GatedSsm(HawkConfig) = gated_ssm::gated_ssm,
    /// Files may have the name that it had first.
    #[serde(alias = "decision_transformer")]
    "causal_transformer" CausalTransformer(AttentionConfig) = attention::transformer,
}

impl Backbone {
    /// Width of the trunk vector that the heads read.
    pub fn output_size(&self, input: usize) -> usize {
        self.config().output_size(input)
    }

    /// Whether it reads whole windows alone: it has no step.
    pub fn is_window_only(&self) -> bool {
        self.config().window_only()
    }

    /// # Errors
    /// `Mismatch` for a backbone that reads whole windows alone: no game carries its state.
    pub fn check_carried(&self) -> Result<()> {
        if self.is_window_only() {
            return Err(Error::mismatch(format!("memory of a {}", self.name()), "window", "carry"));
        }
        Ok(())
    }

    /// Checks every number before memory is taken for it.
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
