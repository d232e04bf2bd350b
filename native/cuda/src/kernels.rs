//! The kernels of each `.cu` file under `native/` as PTX text, which the driver compiles while loading.

/// The kernels of one file.
#[derive(Debug, Clone, Copy)]
pub struct Module {
    /// The name of the module: `sconce_` and the name of the file.
    pub name: &'static str,
    /// The PTX text; empty in a build without CUDA.
    pub ptx: &'static str,
}

macro_rules! modules {
    ($($constant:ident $name:literal)*) => {
        $(#[doc = concat!("The kernels of the module `", $name, "`.")]
        pub const $constant: Module = Module {
            name: concat!("sconce_", $name),
            #[cfg(feature = "cuda")]
            ptx: include_str!(concat!(env!("OUT_DIR"), "/", $name, ".ptx")),
            #[cfg(not(feature = "cuda"))]
            ptx: "",
        };)*
    };
}

modules! {
    ACTIVATION "activation"
    ADAMW "adamw"
    ATTENTION "attention"
    CAUSAL_CONV "causal_conv"
    COLUMNS "columns"
    DECIDE "decide"
    DROPOUT "dropout"
    ENVIRONMENTS "environments"
    FEW_ROWS "few_rows"
    GATHER "gather"
    LAST "last"
    LINEAR_RECURRENCE "linear_recurrence"
    LOSS "loss"
    MAMBA_STEP "mamba_step"
    MATRIX_STATE "matrix_state"
    NORM "norm"
    PLACES "places"
    PPO "ppo"
    RECURRENT "recurrent"
    RETURNS "returns"
    ROTARY "rotary"
    ROWS "rows"
    SAMPLE "sample"
    SELECTIVE_SCAN "selective_scan"
    WKV "wkv"
}

#[cfg(feature = "flash-attn")]
modules! {
    FLASH_ATTENTION_BF16 "flash_attention_bf16"
    FLASH_ATTENTION_F16 "flash_attention_f16"
}
