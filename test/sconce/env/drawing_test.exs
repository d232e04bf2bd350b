defmodule Sconce.Env.DrawingTest do
  use ExUnit.Case, async: true

  import ExUnit.CaptureIO
  import Sconce.Test.Scratch

  alias Sconce.Env
  alias Sconce.Env.Drawing
  alias Sconce.Env.Drawing.{Live, Svg, Terminal}
  alias Sconce.Policy
  alias Sconce.Test.Worlds.Catch

  defp trace!(name) do
    {:ok, spec} = Env.spec(name)
    own = [embedding: {:vector, spec.observation_size}, heads: spec.heads]
    {:ok, policy} = Policy.init(own ++ [backbone: :mlp, hidden_sizes: [8]], seed: 1)
    {:ok, trace} = Env.trace(policy, name, time_limit: 30)
    trace
  end

  test "every world has a picture whose shapes keep their kinds, and stay in view" do
    for name <- [Catch | Env.names()] do
      trace = trace!(name)
      {{left, bottom, right, top} = view, pace_ms} = Drawing.view(trace)
      assert pace_ms > 0
      frames = Drawing.frames(trace)
      assert length(frames) == length(trace.states)

      assert [_one] =
               frames |> Enum.map(&Enum.map(&1, fn shape -> elem(shape, 0) end)) |> Enum.uniq()

      for frame <- frames, {kind, [x, y | _], _color} <- frame, kind != :line do
        assert x >= left - 0.5 and x <= right + 0.5
        assert y >= bottom - 0.5 and y <= top + 0.5
      end

      lines = Terminal.picture(hd(frames), view, 60, 16)
      assert length(lines) <= 16
      assert Enum.all?(lines, &(String.length(&1) <= 60))
      assert Enum.join(lines) =~ ~r/[^\x{2800}]/u
    end
  end

  test "a trace becomes an animated SVG without scripts" do
    for name <- [Catch | Env.names()] do
      svg = name |> trace!() |> Svg.text()
      assert svg =~ ~r/^<svg .*<\/svg>\n$/s
      assert svg =~ "#{if name == Catch, do: inspect(Catch), else: name} · "
      assert svg =~ "<animate attributeName="
      refute svg =~ "script"

      # Each tag is closed in itself, or by the next closing tag of its name.
      for tag <- ~w(svg line circle rect text),
          do: assert(count(svg, ~r/<#{tag}\b(?![^>]*\/>)/) == count(svg, ~r/<\/#{tag}>/))
    end
  end

  defp count(text, regex), do: regex |> Regex.scan(text) |> length()

  test "a file that does not end in .svg is refused" do
    trace = trace!(:pendulum)
    dir = tmp_dir!("drawing")

    assert {:error, %{kind: :mismatch, op: :write_svg}} =
             Svg.write(trace, Path.join(dir, "a.png"))

    assert Svg.write(trace, Path.join(dir, "a.svg")) == :ok
    assert File.read!(Path.join(dir, "a.svg")) == Svg.text(trace)
  end

  test "without a terminal a few pictures are printed, and in one a film" do
    trace = trace!(:cart_pole)
    text = capture_io(fn -> Live.show(trace, false) end)
    assert length(Regex.scan(~r/cart_pole · step/, text)) == 4
    assert text =~ "step 0 · return 0.0\n"
    refute text =~ "\e"
    film = capture_io("", fn -> Live.show(trace, true) end)
    assert film =~ ~r/\e\[\d+A/
    assert film =~ "step #{length(trace.rewards)} · return"
    assert String.ends_with?(film, "\e[?25h")
  end
end
