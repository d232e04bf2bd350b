defmodule Mix.Tasks.Sconce.DoctorTest do
  use ExUnit.Case, async: true

  import ExUnit.CaptureIO
  import Sconce.Test.Scratch

  alias Mix.Tasks.Sconce.Doctor
  alias Sconce.Corpus

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
          ~r/\ngpu\n  card +\w/,
          ~r/\n  build +\w/,
          ~r/loaded +.*sconce_nif.so/,
          ~r/SCONCE_REPLAYS +unset/,
          ~r/Nothing is missing/
        ] do
      assert output =~ line
    end
  end

  test "it names the source of each setting, and settings without effect" do
    env = [{"MIX_ENV", "test"}, {"EXLA_TARGET", "cuda"}, {"SCONCE_THREADS", "2"}]
    {output, status} = mix(["sconce.doctor"], File.cwd!(), env ++ [{"XLA_FLAGS", "--fast"}])
    # A configured device that is unavailable counts as wrong.
    usable = Sconce.GPU.available?()
    assert status == if(usable, do: 0, else: 1)
    assert usable or output =~ ~r/wrong\n  EXLA_TARGET +.* \(to mend it: .*device: :cpu\)/
    assert output =~ ~r/device +:cuda \(EXLA_TARGET\)/
    assert output =~ ~r/threads +2 \(SCONCE_THREADS\)/
    assert output =~ ~r/preset +nil \(default\)/
    assert output =~ ~r/set without effect\n  XLA_FLAGS +--fast \(Sconce has no XLA/

    wrong = [{"SCONCE_DEVICE", "cud"}, {"EXPHIL_GPU", "no"}, {"SCONCE_PRESET", "quik"} | env]
    assert {output, 1} = mix(["sconce.doctor"], File.cwd!(), wrong)
    assert output =~ ~r/device +"cud" \(SCONCE_DEVICE, wrong\)/
    assert output =~ ~r/threads +2 \(SCONCE_THREADS\)/
    assert output =~ ~r/wrong\n  SCONCE_DEVICE +device cannot be "cud", did you mean cuda\?/
    assert output =~ ~r/  EXPHIL_GPU +device cannot be "no", expected 0 or 1/
    assert output =~ ~r/  SCONCE_PRESET +preset cannot be "quik", did you mean quick\?/
  end

  test "it names harmful flags of its VM and still succeeds" do
    flags = System.get_env("ELIXIR_ERL_OPTIONS", "") <> " +sbwt very_long +sbt db"
    env = [{"ELIXIR_ERL_OPTIONS", flags}, {"SCONCE_BACKGROUND", "normal"}]
    assert {output, 0} = mix(["sconce.doctor"], File.cwd!(), [{"MIX_ENV", "test"} | env])
    assert output =~ ~r/busy wait +\+sbwt very_long/
    assert output =~ ~r/background +training and import run at normal priority/
    assert output =~ ~r/known to hurt\n  \+sbwt very_long +idle schedulers spin/
    assert output =~ ~r/  \+sbt +a bound scheduler/
    assert output =~ ~r/  SCONCE_BACKGROUND +background :normal lets training/
    assert output =~ "Nothing is missing"
  end

  test "an unknown kind of build is reported as wrong and not tried" do
    assert {output, 1} = mix(["sconce.doctor"], File.cwd!(), [{"SCONCE_CUDA", "yes"}])
    assert output =~ ~r/wrong\n  SCONCE_CUDA +expected 1 or flash-attn, got: yes/
  end

  test "it checks a corpus to the last byte" do
    dir = tmp_dir!("doctor")
    game = {List.duplicate(0.5, 20), List.duplicate(1, 20)}
    corpus = Path.join(dir, "corpus")

    {:ok, _} =
      Corpus.build({:vector, 1}, [game, game], into: corpus, heads: [go: {:bernoulli, 1}])

    doctor = fn -> Doctor.run(["--corpus", corpus]) end
    assert capture_io(doctor) =~ ~r/^2 games, .* all bytes match their digests$/m

    [shard | _] = Path.wildcard(Path.join(corpus, "games/*"))
    whole = File.read!(shard)
    size = byte_size(whole) - 1
    <<before::binary-size(size), last>> = whole
    File.write!(shard, [before, Bitwise.bxor(last, 1)])

    output =
      capture_io(fn ->
        assert_raise Mix.Error, ~r/1 of 2 games are damaged: .*import their sources/, doctor
      end)

    assert output =~ ~r/damaged games\/.*, of game \d: .*not those that were written/
    File.rm!(shard)
    assert_raise Mix.Error, ~r/1 of 2 games are damaged.*not found/, fn -> capture_io(doctor) end
  end

  test "it checks a store block by block" do
    folder = Path.join(tmp_dir!("doctor"), "store")
    {:ok, store} = Sconce.Store.open(folder, compress: false)
    :ok = Sconce.Store.put_all(store, %{"a" => [1, 2, 3], "b" => [4]})
    :ok = Sconce.Store.put(store, "b", [5])
    doctor = fn -> Doctor.run(["--store", folder]) end
    # The process that writes goes on meanwhile.
    assert capture_io(doctor) =~ "2 tensors in 2 blocks: 16 B, 16 B as stored, 44 B unused\n"
    :ok = Sconce.Store.close(store)

    [pack] = Path.wildcard(Path.join(folder, "packs/*"))
    whole = File.read!(pack)
    size = byte_size(whole) - 1
    <<before::binary-size(size), last>> = whole
    File.write!(pack, [before, Bitwise.bxor(last, 1)])
    output = capture_io(fn -> assert catch_exit(doctor.()) == {:shutdown, 1} end)

    assert output =~
             ~r/damaged packs\/00000000.pack at byte \d+, of "b": checksum .*; put these tensors again/

    assert_raise Mix.Error, ~r/not found/, fn ->
      capture_io(fn -> Doctor.run(["--store", folder <> "-none"]) end)
    end
  end

  test "without library and cargo it still runs, and names both with the commands that install them" do
    env = [{"MIX_BUILD_PATH", tmp_dir!("doctor")}, {"CARGO", "/nowhere/cargo"}]
    assert {output, 1} = mix(["sconce.doctor"], File.cwd!(), env)

    assert output =~ ~r/not loaded +Failed to load NIF library/
    assert output =~ ~r/missing\n  cargo +curl .*rustup/
    assert output =~ ~r/native library +mix compile/
  end

  test "it takes no other arguments" do
    assert_raise Mix.Error, ~r/unknown option --fix/, fn ->
      Mix.Tasks.Sconce.Doctor.run(["--fix"])
    end
  end

  test "the oldest Rust it accepts is the one of Cargo.toml" do
    [_, minor] = Regex.run(~r/rust-version = "([\d.]+)"/, File.read!("Cargo.toml"))
    assert Mix.Tasks.Sconce.Doctor.rust() == minor <> ".0"
  end

  test "of production it checks the machine, each finding with what mends it" do
    assert {output, status} =
             mix(["sconce.doctor", "--production"], File.cwd!(), [{"MIX_ENV", "test"}])

    for name <- [
          "CPU governor",
          "CPU quota",
          "memory",
          "schedulers",
          "log level",
          "disk",
          "native library"
        ],
        do: assert(output =~ ~r/^  #{name} +\S/m, name)

    assert status == if(output =~ "\nto change\n", do: 1, else: 0)
  end

  test "of a run it says what held it up, from its report and from its last saved state" do
    dir = tmp_dir!("doctor_run")
    {:ok, games} = Sconce.Env.CartPole.demonstrations(games: 4)
    {:ok, corpus} = Sconce.Env.CartPole.corpus(games, into: Path.join(dir, "corpus"))
    out = Path.join(dir, "run")

    options = [
      hidden_size: 8,
      num_layers: 1,
      window_size: 8,
      batch_size: 8,
      steps: 30,
      threads: 1
    ]

    {:ok, run} = Sconce.Trainer.start_link([corpus: corpus, out: out] ++ options)
    {:ok, _report} = Sconce.Trainer.await(run)

    ended = capture_io(fn -> Doctor.run(["--run", out]) end)
    assert ended =~ ~r/^  data +steps waited [\d.]+ % of their time/m
    assert ended =~ ~r/^  threads +1 thread/m

    File.rm!(Path.join(out, "report.json"))
    assert capture_io(fn -> Doctor.run(["--run", out]) end) =~ ~r/^  data +steps waited/m

    assert_raise Mix.Error, ~r/last.safetensors/, fn -> Doctor.run(["--run", dir]) end
  end

  test "it reads config/runtime.exs, and reports one that fails" do
    root = tmp_dir!("doctor_app")
    for folder <- ["config", "lib"], do: File.mkdir_p!(Path.join(root, folder))

    File.write!(Path.join(root, "mix.exs"), """
    defmodule App.MixProject do
      use Mix.Project
      def project, do: [app: :app, version: "0.1.0", deps: []]
    end
    """)

    doctor = fn text ->
      File.write!(Path.join(root, "config/runtime.exs"), text)
      ebin = Application.app_dir(:sconce, "ebin")
      env = [{"ELIXIR_ERL_OPTIONS", "+fnu -pa " <> ebin}]
      {output, _status} = mix(["sconce.doctor"], root, env)
      output
    end

    output = doctor.("import Config\nconfig :sconce, threads: 3, preset: :quik")
    assert output =~ ~r/threads +3 \(config :sconce\)/
    assert output =~ ~r/wrong\n.*preset cannot be :quik, did you mean :quick\?/s
    assert doctor.("raise \"no PORT\"") =~ ~r{wrong\n +config/runtime.exs +no PORT}
  end
end
