//! The kernels of each `.cu` file under `native/`: machine code for the usual cards, and PTX text for all cards, which
//! the driver compiles while loading.

/// The kernels of one file.
#[derive(Debug, Clone, Copy)]
pub struct Module {
    /// The name of the module: `sconce_` and the name of the file.
    pub name: &'static str,
    /// The PTX text; empty in a build without CUDA.
    pub ptx: &'static str,
    /// Machine code by compute capability; empty in a build without CUDA.
    pub machine: &'static [(Capability, &'static [u8])],
}

/// The major and the minor number of a compute capability.
pub type Capability = (i32, i32);

impl Module {
    /// The machine code that runs on a card of this compute capability: code for the same major number and the largest
    /// minor number that is not above the card's.
    pub fn machine_for(&self, (major, minor): Capability) -> Option<&'static [u8]> {
        let runs = |of: &&(Capability, _)| of.0.0 == major && of.0.1 <= minor;
        self.machine.iter().filter(runs).max_by_key(|(of, _)| of.1).map(|(_, code)| *code)
    }
}

#[cfg(feature = "cuda")]
macro_rules! output {
    ($include:ident $name:literal $extension:literal) => {
        $include!(concat!(env!("OUT_DIR"), "/", $name, $extension))
    };
}

macro_rules! modules {
    ($($constant:ident $name:literal)*) => {
        $(#[doc = concat!("The kernels of the module `", $name, "`.")]
        pub const $constant: Module = Module {
            name: concat!("sconce_", $name),
            #[cfg(feature = "cuda")]
            ptx: output!(include_str $name ".ptx"),
            #[cfg(not(feature = "cuda"))]
            ptx: "",
            // The architectures of tools/cuda-kernels.
            #[cfg(feature = "cuda")]
            machine: &[
                ((8, 0), output!(include_bytes $name ".sm_80")),
                ((9, 0), output!(include_bytes $name ".sm_90")),
                ((12, 0), output!(include_bytes $name ".sm_120")),
            ],
            #[cfg(not(feature = "cuda"))]
            machine: &[],
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
    ELEMENTS "elements"
    ENVIRONMENTS "environments"
    FEW_ROWS "few_rows"
    GATHER "gather"
    HOLOGRAPHIC "holographic"
    LAST "last"
    LINEAR_RECURRENCE "linear_recurrence"
    LOSS "loss"
    MAMBA_STEP "mamba_step"
    MATRIX_STATE "matrix_state"
    NORM "norm"
    PLACES "places"
    POPULATION "population"
    PPO "ppo"
    RECURRENT "recurrent"
    RECURRENT_WALK "recurrent_walk"
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_code_runs_on_later_minor_numbers_of_its_major_number() {
        let machine: &[(Capability, &[u8])] =
            &[((8, 6), &[86]), ((8, 0), &[80]), ((12, 0), &[120])];
        let module = Module { machine, ..ROWS };
        let code = |capability| module.machine_for(capability).map(|code| code[0]);
        assert_eq!([(8, 0), (8, 6), (8, 9)].map(code), [Some(80), Some(86), Some(86)]);
        assert_eq!([(7, 5), (9, 0), (12, 1)].map(code), [None, None, Some(120)]);
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn usual_cards_have_machine_code() {
        for card in [(8, 0), (8, 6), (8, 9), (9, 0), (12, 0)] {
            assert!(ROWS.machine_for(card).is_some_and(|code| code.starts_with(b"\x7fELF")));
        }
    }
}
