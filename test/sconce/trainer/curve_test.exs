defmodule Sconce.Trainer.CurveTest do
  use ExUnit.Case, async: true

  import Sconce.Test.Scratch

  alias Sconce.Error
  alias Sconce.Trainer.Curve

  doctest Curve

  @plain %{
    button_weight: 1.0,
    bernoulli_reduction: "sum",
    pos_weight: "none",
    label_smoothing: 0.0,
    focal_gamma: nil,
    stick_edge_weight: nil,
    entropy_weight: 0.0,
    head_normalize: false
  }

  defp report(more \\ %{}) do
    history =
      for step <- 10..2000//10 do
        nll = if rem(step, 500) == 0, do: 1.2 + 200 / step
        %{step: step, loss: 1.0 + 100 / step, learning_rate: 1.0e-3, nll: nll, seconds: step / 10}
      end

    baselines = for {name, nll} <- [{"marginal", 4.6}, {"pairs", 1.5}], do: baseline(name, nll)

    Map.merge(
      %{
        history: history,
        baselines: baselines,
        best_step: 1500,
        steps: 2000,
        seconds: 200.4,
        train: %{games: 9, frames: 123_456},
        options: %{loss: @plain}
      },
      more
    )
  end

  defp baseline(name, nll), do: %{name: name, report: %{nll: nll}}

  # Number of elements of a name, after a check that all elements are closed in order.
  defp count(svg, name) do
    tags = Regex.scan(~r/<(\/?)([A-Za-z]+)((?:\s+[\w:.-]+="[^"<>]*")*)\s*(\/?)>/, svg)
    assert Regex.replace(~r/<[^<>]*>/, svg, "") =~ ~r/^([^<>&]|&(amp|lt|gt);)*$/
    assert length(tags) == length(Regex.scan(~r/</, svg))
    assert Enum.reduce(tags, [], &nest/2) == []
    Enum.count(tags, fn [_tag, slash, tag | _] -> slash == "" and tag == name end)
  end

  defp nest([_tag, "", _name, _attributes, "/"], open), do: open
  defp nest([_tag, "", name, _attributes, ""], open), do: [name | open]
  defp nest([_tag, "/", name, _attributes, ""], [name | open]), do: open

  test "the SVG is well-formed and self-contained" do
    svg = Curve.svg(report(), title: "a < b & c")
    assert count(svg, "svg") == 1
    assert svg =~ "a &lt; b &amp; c"
    refute svg =~ ~r/href|<script|url\(http/
  end

  test "it shows each validation, rings the best, and names each baseline with its score" do
    svg = Curve.svg(report())
    # Four points, one ring, one mark in the legend.
    assert count(svg, "circle") == 6
    assert length(Regex.scan(~r/<circle [^>]*fill="none"/, svg)) == 1

    for text <- ["marginal 4.600", "pairs 1.500", "policy 1.333", "step", "nats a frame"],
        do: assert(svg =~ text)

    assert svg =~ "123,456 frames of 9 games · 2,000 steps in 3:20 · best validation NLL 1.333"
  end

  test "loss and NLL share a panel if they are the same quantity, else each has one" do
    assert count(Curve.svg(report()), "clipPath") == 3
    svg = Curve.svg(report(%{options: %{loss: %{@plain | label_smoothing: 0.1}}}))
    assert count(svg, "clipPath") == 4
    assert svg =~ ">training loss</text>"
  end

  test "each head has a curve, with its name and last number at the edge" do
    %{history: history} = report()

    history =
      for point <- history do
        heads = for {name, nll} <- [{"buttons", 0.5}, {"c_x", 0.02}], do: %{name: name, nll: nll}
        Map.put(point, :heads, if(point.nll, do: heads, else: []))
      end

    svg = Curve.svg(report(%{history: history}))
    for text <- ["of each head", "buttons 0.500", "c_x 0.020"], do: assert(svg =~ text)

    alone = for point <- history, do: %{point | heads: Enum.take(point.heads, 1)}
    refute Curve.svg(report(%{history: alone})) =~ "of each head"
  end

  test "the training loss of each head has a panel of its own" do
    losses = for {name, loss} <- [{"buttons", 0.7}, {"c_x", 0.03}], do: %{name: name, loss: loss}
    history = for point <- report().history, do: Map.put(point, :losses, losses)
    svg = Curve.svg(report(%{history: history}))

    for text <- ["training loss of each head", "buttons 0.700", "c_x 0.030"],
        do: assert(svg =~ text)

    assert count(svg, "clipPath") == count(Curve.svg(report()), "clipPath") + 1
  end

  test "the divergence from a teacher has a panel, and the loss is then not the NLL" do
    history = for point <- report().history, do: Map.put(point, :figures, %{teacher_kl: 0.5})
    options = %{loss: @plain, teacher: "teacher.safetensors"}
    svg = Curve.svg(report(%{history: history, options: options}))
    assert svg =~ "KL to the teacher, nats a frame"
    assert count(svg, "clipPath") == count(Curve.svg(report()), "clipPath") + 2
  end

  test "learning rate, frames per second and the wait for data have panels below" do
    history =
      for p <- report().history, do: Map.merge(p, %{frames_per_second: 4.2e4, data_wait: 0.013})

    svg = Curve.svg(report(%{history: history}))

    for text <- ["learning rate", "frames a second · 1.3 % waiting", "50k"],
        do: assert(svg =~ text)
  end

  test "a baseline far above the curve is outside the frame, and its label says so" do
    svg = Curve.svg(report())
    assert svg =~ "↑ marginal 4.600"
    refute svg =~ "↑ pairs"
  end

  test "the steep start of a run is outside the frame, so that the rest is visible" do
    steep = [%{step: 1, loss: 900.0, learning_rate: 0.0, nll: 800.0, seconds: 0.1}]
    history = for p <- report().history, do: %{p | loss: 1.0 + 1 / p.step}
    svg = Curve.svg(report(%{history: steep ++ history}))

    [_, highest] =
      Regex.run(~r/text-anchor="end" fill="#475569">([\d.]+)<\/text>\s*<path d="M64 4/, svg)

    assert String.to_float(highest) < 10
  end

  test "labels at the edge do not overlap" do
    close = for {name, nll} <- [{"a", 1.5}, {"b", 1.501}, {"c", 1.502}], do: baseline(name, nll)
    svg = Curve.svg(report(%{baselines: close}))

    [_ | _] =
      ys =
      for [_, y] <- Regex.scan(~r/<text x="\d+" y="([\d.]+)" fill="#\w+" font-weight/, svg),
          do: String.to_float(y)

    assert length(ys) == 4

    assert ys
           |> Enum.sort()
           |> Enum.chunk_every(2, 1, :discard)
           |> Enum.all?(fn [a, b] -> b - a > 14.5 end)
  end

  test "a run that was stopped at once has a picture" do
    none = report(%{history: [], baselines: [], best_step: nil})
    assert count(Curve.svg(none), "svg") == 1
    assert Curve.text(none) == ""

    one = %{
      none
      | history: [%{step: 1, loss: 1.0, nll: 0.5, learning_rate: 0.0, seconds: 0.1}],
        best_step: 1
    }

    assert count(Curve.svg(one), "svg") == 1

    flat = %{
      none
      | history:
          for(s <- 1..3, do: %{step: s, loss: 0.0, nll: nil, learning_rate: 0.0, seconds: 0.1})
    }

    assert count(Curve.svg(flat), "svg") == 1
    assert Curve.text(flat) =~ "training loss"
  end

  test "the plot for a terminal follows the curve, in the given number of lines" do
    lines = report() |> Curve.text(20, 4) |> String.split("\n", trim: true)
    assert [title | rows] = lines
    {rows, [steps]} = Enum.split(rows, 4)
    assert title =~ "validation NLL"
    assert steps =~ ~r/500 +2,000 step/
    dots = rows |> Enum.map(&first_dot/1) |> Enum.reject(&is_nil/1)
    assert length(dots) >= 2 and dots == Enum.sort(dots) and dots == Enum.uniq(dots)
    assert rows |> Enum.map(&String.length/1) |> Enum.uniq() |> length() == 1
  end

  test "a file that cannot be written is an error that names it" do
    dir = tmp_dir!("curve")
    assert :ok = Curve.write(report(), Path.join(dir, "curve.svg"))
    path = Path.join(dir, "curve.svg/no")
    assert {:error, %Error{kind: :io, details: %{path: ^path}}} = Curve.write(report(), path)
  end

  test "an unknown option is named" do
    assert_raise ArgumentError, ~r/did you mean :title/, fn -> Curve.svg(report(), tilte: "x") end
  end

  defp first_dot(line) do
    [_label, dots] = String.split(line, "┤")
    dots |> String.graphemes() |> Enum.find_index(&(&1 != "⠀"))
  end
end
