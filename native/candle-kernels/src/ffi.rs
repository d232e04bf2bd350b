//! What candle calls for quantized tensors and mixtures of experts. Nothing of Sconce makes one: a call would be a
//! bug, and ends the process rather than answer what nobody computed.

use std::ffi::c_void;
use std::process::abort;

type In = *const c_void;
type Out = *mut c_void;

macro_rules! absent {
    ($($arguments:tt: $($name:ident)*;)*) => {
        $($(absent!(one $name $arguments);)*)*
    };
    (one $name:ident ($($argument:ty),*)) => {
        /// # Safety
        /// It does not return.
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn $name($(_: $argument),*) {
            eprintln!("{}: this build has no quantized kernels", stringify!($name));
            abort()
        }
    };
}

absent! {
    (In, In, *const i32, *const i32, *const f32, Out, *mut i32, *mut i32, i32, i32, i32, i32, i32, i32, bool, i64):
        moe_gemm_wmma;
    (*const f32, In, *const i32, *const i32, *const f32, Out, i32, i32, i32, i32, i32, i32, i64):
        moe_gemm_gguf;
    (In, *const u8, *const i32, *const i32, *const f32, Out, i32, i32, i32, i32, i32, i32, i32, i64):
        moe_gemm_gguf_prefill;
    (In, In, Out, i32, i32, i32, i32, i32, Out):
        launch_mmvq_gguf_q4_0_bf16_plain launch_mmvq_gguf_q4_1_bf16_plain
        launch_mmvq_gguf_q5_0_bf16_plain launch_mmvq_gguf_q5_1_bf16_plain
        launch_mmvq_gguf_q8_0_bf16_plain launch_mmvq_gguf_q2_k_bf16_plain
        launch_mmvq_gguf_q3_k_bf16_plain launch_mmvq_gguf_q4_k_bf16_plain
        launch_mmvq_gguf_q5_k_bf16_plain launch_mmvq_gguf_q6_k_bf16_plain
        launch_mmvq_gguf_q4_0_f16_plain launch_mmvq_gguf_q4_1_f16_plain
        launch_mmvq_gguf_q5_0_f16_plain launch_mmvq_gguf_q5_1_f16_plain
        launch_mmvq_gguf_q8_0_f16_plain launch_mmvq_gguf_q2_k_f16_plain
        launch_mmvq_gguf_q3_k_f16_plain launch_mmvq_gguf_q4_k_f16_plain
        launch_mmvq_gguf_q5_k_f16_plain launch_mmvq_gguf_q6_k_f16_plain
        launch_mmvq_gguf_q4_0_f32_plain launch_mmvq_gguf_q4_1_f32_plain
        launch_mmvq_gguf_q5_0_f32_plain launch_mmvq_gguf_q5_1_f32_plain
        launch_mmvq_gguf_q8_0_f32_plain launch_mmvq_gguf_q2_k_f32_plain
        launch_mmvq_gguf_q3_k_f32_plain launch_mmvq_gguf_q4_k_f32_plain
        launch_mmvq_gguf_q5_k_f32_plain launch_mmvq_gguf_q6_k_f32_plain;
    (In, Out, i32, i32, i32, Out):
        launch_mmvq_gguf_quantize_q8_1_bf16 launch_mmvq_gguf_quantize_q8_1_f16
        launch_mmvq_gguf_quantize_q8_1_f32;
    (In, *const i32, Out, i32, i64, i64, i64, i64, i64, i64, i64, i64, Out):
        launch_mmq_quantize_q8_1_D4 launch_mmq_quantize_q8_1_DS4 launch_mmq_quantize_q8_1_D2S6;
    (Out, In, In, Out, i64, i64, i64, i64, i64, i32, i32, i64, i32, Out):
        launch_mmq_gguf_q4_0 launch_mmq_gguf_q4_1 launch_mmq_gguf_q5_0 launch_mmq_gguf_q5_1
        launch_mmq_gguf_q8_0 launch_mmq_gguf_q2_k launch_mmq_gguf_q3_k launch_mmq_gguf_q4_k
        launch_mmq_gguf_q5_k launch_mmq_gguf_q6_k;
}
