# Measures what a trace of `Sconce.Monitor.trace/2` costs:
#
#     mix run traced.exs | tee traced.txt                # fifteen pairs
#     mix run traced.exs --pairs 9 --decisions 2000
#
# Each pair does the same work once without a trace and once within one, in turns: decisions of a session, and training steps
# of a run. The table has the median of the ratios of a pair, and a 95 % interval for it from order statistics. Times do not
# decide about the status.

defmodule Traced do
  alias Sconce.Bench.{Machine, Output}
  alias Sconce.{Corpus, Monitor, Policy, Session, Trainer}

  @switches [pairs: :integer, decisions: :integer, steps: :integer]
  @columns [
             {"work", 24, :left},
             {"without", 12, :right},
             {"traced", 12, :right},
             {"ratio", 8, :right}
           ] ++
             [{"95 % interval", 18, :right}, {"spans", 8, :right}]

  def main(args) do
    {opts, []} = OptionParser.parse!(args, strict: @switches)
    opts = Keyword.merge([pairs: 15, decisions: 5_000, steps: 40], opts)
    opts[:pairs] >= 6 || raise "fewer than 6 pairs have no interval of 95 %"
    {:ok, _apps} = Application.ensure_all_started(:sconce)
    dir = Path.join(System.tmp_dir!(), "sconce-traced-#{System.pid()}")
    File.mkdir_p!(dir)
    IO.puts("mix run traced.exs #{Enum.join(args, " ")}, #{opts[:pairs]} pairs")
    IO.puts(Output.header(Machine.describe()))
    IO.puts(Output.line(@columns, for({title, _width, _side} <- @columns, do: title)))

    for {name, spec} <- policies(),
        do: row("decision, #{name}", opts[:decisions], act(spec), opts)

    row("training step, gru 128x2", opts[:steps], train(dir), opts)
    File.rm_rf!(dir)
  end

  defp policies do
    packed = {:melee, layout: :packed}

    [
      {"mlp 512 512", [embedding: packed, backbone: :mlp, hidden_sizes: [512, 512]]},
      {"gru 256x2", [embedding: packed, backbone: :gru]}
    ]
  end

  defp act(spec) do
    {:ok, policy} = Policy.init(spec, seed: 1)
    {:ok, session} = Session.open(policy, seed: 1)
    frame = :binary.copy(<<0.0::float-32-little>>, policy.raw_width)
    fn times -> for _frame <- 1..times, do: {:ok, _action} = Session.act(session, frame) end
  end

  defp train(dir) do
    heads = [fire: {:bernoulli, 1}]

    games =
      for n <- 1..8, do: {for(t <- 1..400, _ <- 1..16, do: :math.sin(n * t / 20)), presses()}

    {:ok, corpus} = Corpus.build({:vector, 16}, games, into: Path.join(dir, "c"), heads: heads)

    spec =
      Policy.Spec.new(embedding: {:vector, 16}, heads: heads, backbone: :gru, hidden_size: 128)

    fn steps ->
      out = Path.join(dir, "run-#{System.unique_integer([:positive])}")
      options = [batch_size: 32, window_size: 60, steps: steps, val_split: 0]
      {:ok, run} = Trainer.start_link([corpus: corpus, out: out, spec: spec] ++ options)
      {:ok, _report} = Trainer.await(run)
    end
  end

  defp presses, do: for(t <- 1..400, do: rem(div(t, 10), 2))

  defp row(name, times, work, opts) do
    work.(times)

    pairs =
      for n <- 1..opts[:pairs] do
        without = fn -> {elem(:timer.tc(fn -> work.(times) end), 0), 0} end
        traced = fn -> traced(work, times) end

        if rem(n, 2) == 0 do
          {plain, _spans} = without.()
          {plain, traced.()}
        else
          with_spans = traced.()
          {elem(without.(), 0), with_spans}
        end
      end

    ratios = Enum.sort(for {plain, {traced, _spans}} <- pairs, do: traced / plain)
    {low, high} = interval(ratios)
    {_us, spans} = pairs |> hd() |> elem(1)
    plain = median(for {plain, _traced} <- pairs, do: plain / times)
    traced = median(for {_plain, {traced, _spans}} <- pairs, do: traced / times)

    cells = [
      name,
      us(plain),
      us(traced),
      number(median(ratios)),
      "#{number(low)} to #{number(high)}"
    ]

    IO.puts(Output.line(@columns, cells ++ ["#{spans}"]))
  end

  defp traced(work, times) do
    {us, {:ok, {_result, trace}}} = :timer.tc(fn -> Monitor.trace(fn -> work.(times) end) end)
    trace.lost == 0 || raise "#{trace.lost} spans have no room"
    {us, Enum.sum(for span <- trace.spans, do: span.count)}
  end

  # The largest distance k from both ends for which at least 95 % of the sums of fair coins lie within.
  defp interval(sorted) do
    n = length(sorted)
    outside = fn k -> 2 * Enum.sum(for(i <- 0..(k - 1)//1, do: choose(n, i))) / 2 ** n end
    k = Enum.find(div(n, 2)..1, &(outside.(&1) <= 0.05)) || 1
    {Enum.at(sorted, k - 1), Enum.at(sorted, n - k)}
  end

  defp choose(n, k),
    do: Enum.reduce(1..k//1, 1, fn i, product -> div(product * (n - i + 1), i) end)

  defp median(values), do: values |> Enum.sort() |> Enum.at(div(length(values), 2))
  defp number(x), do: :erlang.float_to_binary(x, decimals: 3)
  defp us(us), do: "#{:erlang.float_to_binary(us / 1, decimals: 2)} us"
end

Traced.main(System.argv())
