defmodule Mix.Tasks.Sconce.DoctorTest do
  use ExUnit.Case, async: true

  import Sconce.Test.Scratch

  @moduletag timeout: 300_000

  test "it names versions, CPU, memory, library and settings" do
    assert {output, 0} = mix(["sconce.doctor"], File.cwd!(), [{"MIX_ENV", "test"}])
    {:ok, info} = Sconce.native_info()

    for line <- [
          ~r/sconce +#{Sconce.version()}/,
          ~r/elixir +#{System.version()} on OTP #{System.otp_release()}/,
          ~r/rustc +\d+\.\d+\.\d+/,
          ~r/candle +#{info.candle}/,
          ~r/cpu +\d+ threads, \w+/,
          ~r/memory +[\d.]+ GiB/,
          ~r/gpu +not used: CUDA is not part of this version/,
          ~r/loaded +.*sconce_nif.so/,
          ~r/SCONCE_REPLAYS +unset/,
          ~r/Nothing is missing/
        ] do
      assert output =~ line
    end
  end

  test "it says where settings come from, and what is set without effect" do
    env = [{"MIX_ENV", "test"}, {"EXLA_TARGET", "cuda"}, {"SCONCE_THREADS", "2"}]
    assert {output, 0} = mix(["sconce.doctor"], File.cwd!(), env ++ [{"XLA_FLAGS", "--fast"}])
    assert output =~ ~r/device +:cuda \(EXLA_TARGET\)/
    assert output =~ ~r/threads +2 \(SCONCE_THREADS\)/
    assert output =~ ~r/preset +nil \(default\)/
    assert output =~ ~r/set without effect\n  XLA_FLAGS +--fast \(there is no XLA here/

    assert {output, 0} = mix(["sconce.doctor"], File.cwd!(), [{"SCONCE_DEVICE", "cud"} | env])
    assert output =~ ~s(wrong  SCONCE_DEVICE: device cannot be "cud")
  end

  test "without library and cargo it still runs, names both and the commands that mend them" do
    env = [{"MIX_BUILD_PATH", tmp_dir!("doctor")}, {"CARGO", "/nowhere/cargo"}]
    assert {output, 1} = mix(["sconce.doctor"], File.cwd!(), env)

    assert output =~ ~r/not loaded +Failed to load NIF library/
    assert output =~ ~r/missing\n  cargo +curl .*rustup/
    assert output =~ ~r/native library +mix compile/
  end

  test "it takes no arguments" do
    assert_raise Mix.Error, ~r/unknown argument --fix/, fn ->
      Mix.Tasks.Sconce.Doctor.run(["--fix"])
    end
  end

  test "the oldest Rust it accepts is the one of Cargo.toml" do
    [_, minor] = Regex.run(~r/rust-version = "([\d.]+)"/, File.read!("Cargo.toml"))
    assert Mix.Tasks.Sconce.Doctor.rust() == minor <> ".0"
  end
end
