# Compares a hundred steps of a run with the same steps in PyTorch, for check.exs and heads.exs.
#
# A case names a policy and the options of its run. Both sides start with the same weights and learn from
# the same batches in the same order, with AdamW at the same rates. Losses must agree within a relative
# error of 1e-3 at every step; otherwise the status is 1. The curves are written to an SVG file beside the
# script. `PEERS_DIR` is PyTorch's environment, see bench/peers/README.md.

defmodule Steps do
  @moduledoc false

  alias Sconce.Trainer.Curve.{Page, Scale}
  alias Sconce.{Loader, Policy, Trainer}

  @steps 100
  @tolerance 1.0e-3
  @batches [batch_size: 32, window_size: 60, stride: 30, mirror: 0.5, seed: 3]
  @ours "#2563eb"
  @theirs "#ea580c"

  @doc """
  Runs the cases, `{name, policy, run}`, beside `NAME.py`, and writes `NAME.svg`.

  `corpus` makes the corpus in a folder. The Python script is called with the folder of a case, which is
  inside that one, and with the options of the run as `name=value`.
  """
  def main(name, corpus, cases) do
    dir = Path.join(System.tmp_dir!(), "sconce-#{name}-#{System.pid()}")
    File.mkdir_p!(dir)

    try do
      corpus = corpus.(dir)
      checked = for case <- cases, do: check(name, case, corpus, dir)
      svg = Path.join(__DIR__, "#{name}.svg")
      :ok = checked |> svg() |> Page.write(svg, :write_curve)
      if Enum.any?(checked, &(&1.worst > @tolerance)), do: exit({:shutdown, 1})
    after
      File.rm_rf!(dir)
    end
  end

  defp check(script, {name, policy, run}, corpus, dir) do
    dir = Path.join(dir, "#{name}")
    File.mkdir_p!(dir)
    {:ok, initial} = Policy.init(policy, seed: @batches[:seed])
    :ok = Policy.save(initial, Path.join(dir, "initial.safetensors"))
    {ours, rates} = ours(corpus, policy ++ run, dir)
    File.write!(Path.join(dir, "rates"), Enum.map(rates, &"#{&1}\n"))
    export(corpus, dir)
    said(name, ours, theirs(script, run, dir))
  end

  # Losses and learning rates of a run's steps.
  defp ours(corpus, own, dir) do
    caller = self()

    opts =
      [corpus: corpus, out: Path.join(dir, "run"), steps: @steps, loss: :plain, val_split: 0.0] ++
        [evaluate: false, progress: &send(caller, &1)]

    {:ok, run} = Trainer.start_link(opts ++ @batches ++ own)
    {:ok, %{stopped: :finished}} = Trainer.await(run)

    Enum.unzip(
      for _step <- 1..@steps, do: receive(do: (%{event: :step} = e -> {e.loss, e.learning_rate}))
    )
  end

  # The batches that the run learns from, see `Sconce.Loader`.
  defp export(corpus, dir) do
    batches = Loader.stream(corpus, @batches ++ [epochs: :infinity, as: :binaries])

    for batch <- Enum.take(batches, @steps) do
      tensors = Map.take(batch, [:states, :ids, :actions, :frame_weights])
      File.write!(Path.join(dir, "#{batch.step}.safetensors"), safetensors(tensors))
    end
  end

  defp safetensors(tensors) do
    {entries, _end} =
      Enum.map_reduce(tensors, 0, fn {name, %{data: data, type: type, shape: shape}}, from ->
        to = from + byte_size(data)
        {kind, bits} = type
        dtype = String.upcase("#{kind}#{bits}")
        shape = shape |> Tuple.to_list() |> Enum.join(",")
        at = ~s("data_offsets":[#{from},#{to}])
        {~s("#{name}":{"dtype":"#{dtype}","shape":[#{shape}],#{at}}), to}
      end)

    header = "{" <> Enum.join(entries, ",") <> "}"
    [<<byte_size(header)::64-little>>, header, for({_name, t} <- tensors, do: t.data)]
  end

  defp theirs(script, run, dir) do
    home = System.get_env("PEERS_DIR", Path.expand("~/.cache/sconce-peers"))
    python = Path.join(home, "venv/bin/python")
    options = for {name, value} <- run, do: "#{name}=#{value}"
    {losses, 0} = System.cmd(python, ["-B", Path.join(__DIR__, "#{script}.py"), dir | options])
    losses |> String.split() |> Enum.map(&String.to_float/1)
  end

  defp said(name, ours, theirs) when length(ours) == length(theirs) do
    apart = Enum.zip_with(ours, theirs, fn a, b -> abs(a - b) / abs(b) end)
    worst = Enum.max(apart)
    step = Enum.find_index(apart, &(&1 == worst)) + 1

    text =
      "#{name}: #{@steps} steps, furthest apart #{Scale.power(worst)} of the loss, at step #{step}"

    IO.puts("#{text}; loss #{Scale.number(hd(ours), 4)} to #{Scale.number(List.last(ours), 4)}")
    %{name: name, ours: ours, theirs: theirs, apart: apart, worst: worst}
  end

  defp svg(checked) do
    losses =
      for run <- checked do
        theirs = run.theirs |> points() |> Enum.take_every(5)
        series = [{:points, @theirs, theirs, nil, nil}, {:trace, @ours, points(run.ours), nil}]
        {220, [%{title: "#{run.name}: loss", x: nil, series: series}]}
      end

    apart =
      for run <- checked do
        millionths = for {step, apart} <- points(run.apart), do: {step, 1.0e6 * apart}
        title = "#{run.name}: apart, millionths of the loss"
        %{title: title, x: "step", series: [{:trace, @ours, millionths, nil}], from: [0]}
      end

    legend = [{"Sconce", @ours, :line}, {"PyTorch", @theirs, :points}]
    summary = "The same weights, batches and optimiser; every fifth loss of PyTorch is shown."
    Page.svg("A hundred steps beside PyTorch", summary, legend, losses ++ [{130, apart}])
  end

  defp points(numbers), do: Enum.with_index(numbers, &{&2 + 1, &1})
end
