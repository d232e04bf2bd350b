defmodule Sconce.VMTest do
  use ExUnit.Case, async: true

  alias Sconce.VM

  @sound %{schedulers: 8, dirty_cpu: 8, processors: 8, busy_wait: "default", bound: false}

  test "the settings are those of the running VM" do
    settings = VM.settings()
    assert settings.schedulers == System.schedulers_online()
    assert settings.processors >= 1
    assert is_binary(settings.busy_wait) and is_boolean(settings.bound)
  end

  test "each harmful flag is named, and defaults are not" do
    assert VM.harmful(@sound) == []
    assert VM.harmful(%{@sound | busy_wait: "none"}) == []

    for {changed, flag} <- [
          {%{schedulers: 1, dirty_cpu: 1}, "+S 1"},
          {%{schedulers: 16, dirty_cpu: 16}, "+S 16"},
          {%{dirty_cpu: 1}, "+SDcpu 1"},
          {%{busy_wait: "very_long"}, "+sbwt very_long"},
          {%{bound: true}, "+sbt"}
        ] do
      assert [{^flag, why}] = VM.harmful(Map.merge(@sound, changed))
      assert why =~ "leave"
    end
  end

  test "one scheduler of each kind is not harmful on one processor" do
    assert VM.harmful(%{@sound | schedulers: 1, dirty_cpu: 1, processors: 1}) == []
  end

  test "the last of several equal flags wins" do
    flags = "+sbwt none +sbwt very_long"

    assert {"very_long", 0} =
             System.cmd(
               "erl",
               ["-noshell", "-pa", ebin(), "-pa", elixir(), "-eval", eval()],
               env: [{"ERL_FLAGS", flags}]
             )
  end

  defp eval, do: "io:put_chars(maps:get(busy_wait, 'Elixir.Sconce.VM':settings())), halt()."
  defp ebin, do: Application.app_dir(:sconce, "ebin")
  defp elixir, do: Application.app_dir(:elixir, "ebin")
end
