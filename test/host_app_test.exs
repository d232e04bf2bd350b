defmodule Sconce.HostAppTest do
  use ExUnit.Case, async: true

  import Sconce.Test.Scratch

  @moduletag timeout: 600_000
  @app Path.expand("host_app", __DIR__)

  test "an app that depends on Sconce builds, calls it, and runs as a release" do
    build = tmp_dir!("host_app")
    env = [{"MIX_BUILD_PATH", build} | built_as_this_one()]
    {:ok, info} = Sconce.native_info()
    report = "sconce #{info.version} with candle #{info.candle} on #{info.target}"

    assert {output, 0} = mix(["run", "-e", "IO.puts(HostApp.report())"], @app, env)
    assert output =~ report
    refute output =~ "(lib) generated"
    library = "lib/sconce/priv/native/sconce_nif.so"
    assert File.lstat!(Path.join(build, library)).type == :regular

    probe = "IO.inspect(Sconce.Native.probe_echo(1))"
    assert {output, 0} = mix(["run", "-e", probe], @app, env)
    assert output =~ ~s(kind: :unavailable)
    assert output =~ "without the feature fixtures"

    quick = ~w(--backbone mlp --weights f32 --seconds 0 --batch-size 2 --threads 1)
    assert {output, 0} = mix(["sconce.bench" | quick], @app, env)
    assert output =~ "a training step of 2 windows of 60 frames"

    assert {_output, 0} = mix(["release"], @app, env)
    elsewhere = tmp_dir!("elsewhere")
    release = Path.join(build, "rel/host_app")
    File.rename!(release, Path.join(elsewhere, "moved"))
    File.rm_rf!(build)

    eval = [
      "eval",
      "{:ok, _} = Application.ensure_all_started(:host_app); IO.puts(HostApp.report())"
    ]

    assert {output, 0} = run(Path.join(elsewhere, "moved/bin/host_app"), eval, elsewhere)
    assert output =~ report
    refute output =~ "warning"
  end

  @frames 1_000
  @policy Path.expand("golden/exphil/gru.bin", __DIR__)

  test "an app of ExPhil's shape plays with its agent and with bots, with and without libmelee_ex, and as a release" do
    build = tmp_dir!("host_app_plays")
    # The library of this VM, so that nothing native is built.
    library = Application.app_dir(:sconce, "priv/native/sconce_nif.so")
    env = [{"MIX_BUILD_PATH", build}, {"SCONCE_NATIVE_PATH", library}]
    play = "HostApp.play(#{inspect(@policy)}, #{@frames}, 7)"

    assert {output, 0} = mix(["run", "-e", play], @app, env)
    without = games(output)
    assert Map.keys(without) == ~w(agent bridge chaos step)
    assert "1000 inputs, digest " <> digest = without["step"]
    assert without["bridge"] == "1000 inputs, digest #{digest}"
    assert "1000 inputs, digest " <> _other = without["agent"]

    env = [{"HOST_APP_LIBMELEE", "1"} | env]
    assert {output, 0} = mix(["run", "-e", play], @app, env)
    with_library = games(output)
    assert "1000 frames, last input {" <> _input = with_library["libmelee"]
    assert alike(with_library) == alike(without)

    assert {_output, 0} = mix(["release"], @app, env)
    moved = Path.join(tmp_dir!("plays_elsewhere"), "moved")
    File.rename!(Path.join(build, "rel/host_app"), moved)
    File.rm_rf!(build)
    eval = ["eval", "{:ok, _} = Application.ensure_all_started(:host_app); #{play}"]
    assert {output, 0} = run(Path.join(moved, "bin/host_app"), eval, moved)
    assert alike(games(output)) == alike(without)
    assert games(output)["libmelee"] == with_library["libmelee"]

    for played <- [without, with_library, games(output)], do: assert_chaos(played["chaos"])
  end

  # The lines of the app's games, by name.
  defp games(output) do
    for [_, name, line] <- Regex.scan(~r/^(agent|step|bridge|libmelee|chaos): (.+)$/m, output),
        into: %{},
        do: {name, line}
  end

  defp alike(games), do: Map.take(games, ~w(agent step bridge))

  # Every frame of the agent and of the two bots has an input or a named error, and sessions end with their processes.
  defp assert_chaos(line) do
    numbers = for [number] <- Regex.scan(~r/\d+/, line), do: String.to_integer(number)
    assert [killed, inputs, errors, 0, 3, 0] = numbers
    assert killed > @frames / 40
    assert inputs + errors == 3 * @frames
    assert inputs > 2 * @frames
  end

  # The environment of this build, so that cargo reuses its target folder.
  defp built_as_this_one do
    names = ~w(SCONCE_TARGET_DIR SCONCE_CUDA SCONCE_CUDA_DIR)
    for name <- names, value = System.get_env(name), do: {name, value}
  end
end
