defmodule Sconce.Trainer.GradientsTest do
  use ExUnit.Case, async: true

  import Sconce.Test.Scratch

  alias Sconce.Env.CartPole
  alias Sconce.{Error, Trainer}
  alias Sconce.Trainer.Gradients

  doctest Gradients

  @small [backbone: :gru, hidden_size: 8, num_layers: 1, head_hidden_size: 8, loss: :plain] ++
           [window_size: 16, stride: 16, batch_size: 8, steps: 7]

  setup_all do
    dir = tmp_dir!("gradients")
    {:ok, games} = CartPole.demonstrations(games: 8, steps: 60)
    {:ok, corpus} = CartPole.corpus(games, into: Path.join(dir, "corpus"))
    {:ok, dir: dir, corpus: corpus}
  end

  defp train!(context, more) do
    out = Path.join(context.dir, "run#{System.unique_integer([:positive])}")
    opts = [corpus: context.corpus, out: out] ++ @small ++ more
    {:ok, run} = Trainer.start_link(opts)
    {:ok, report} = Trainer.await(run, 60_000)
    report
  end

  test "a run with a gradient report writes figures of each weight and a picture of its layers",
       context do
    %{out: out} = train!(context, gradient_report: 3)
    assert {:ok, [%{step: 3}, %{step: 6, weights: weights}] = reports} = Trainer.gradients(out)
    {:ok, policy} = Sconce.Policy.load(Path.join(out, "last.safetensors"))
    assert Enum.sum(for w <- weights, do: w.numbers) == policy.num_weights

    for %{name: name} = weight <- weights do
      assert weight.norm > 0 and weight.max_abs >= weight.mean_abs, name
      counted = Enum.sum(weight.histogram) + round(weight.zeros * weight.numbers)
      assert counted == weight.numbers, name
    end

    svg = File.read!(Path.join(out, "gradients.svg"))
    assert svg == Gradients.svg(reports, title: title(svg))
    for text <- ["2 looks", "at step 6", "1e-12"], do: assert(svg =~ text)
    layer = weights |> hd() |> Map.fetch!(:name) |> String.split(".") |> Enum.drop(-1)
    assert svg =~ layer |> Enum.take(-3) |> Enum.join(".")
  end

  test "a run without a gradient report writes neither", context do
    %{out: out} = train!(context, [])
    assert {:error, %Error{kind: :not_found}} = Trainer.gradients(out)
    refute File.exists?(Path.join(out, "gradients.svg"))
  end

  test "a layer is the weights whose names differ only in the last part" do
    weight = fn name, norm ->
      histogram = List.duplicate(0, 12) ++ [2, 1, 0, 0]
      zero = %{mean_abs: 1.0, max_abs: 1.0, zeros: 0.25, weight_norm: 2.0, update_ratio: 0.5}
      Map.merge(zero, %{name: name, numbers: 4, norm: norm, histogram: histogram})
    end

    weights = [weight.("a.b.weight", 3.0), weight.("a.b.bias", 4.0), weight.("c", 1.0)]
    svg = Gradients.svg([%{step: 1, weights: weights}, %{step: 2, weights: weights}])
    # Each of the two layers has a line in two panels, and cells for two powers of ten.
    assert length(Regex.scan(~r/stroke-linejoin/, svg)) == 4
    assert length(Regex.scan(~r/fill-opacity/, svg)) == 4
    assert svg =~ ">a.b  25.0 % 0</text>"
  end

  defp title(svg) do
    [_, title] = Regex.run(~r/font-size="17"[^>]*>([^<]*)</, svg)
    String.replace(title, "&gt;", ">")
  end
end
