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

  # The environment of this build, so that cargo reuses its target folder.
  defp built_as_this_one do
    names = ~w(SCONCE_TARGET_DIR SCONCE_CUDA SCONCE_CUDA_DIR)
    for name <- names, value = System.get_env(name), do: {name, value}
  end
end
