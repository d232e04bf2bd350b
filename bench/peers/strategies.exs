# Compares CMA-ES and its separable form with the package `cma`.
#
#     python peers/strategies.py FILE
#     mix run peers/strategies.exs FILE | tee peers/strategies.txt
#
# Sconce runs the cases of the file with the same starts, first sigmas, populations and limits, and 25 seeds of its own. A row
# has the median and the quartiles: of the evaluations until a value below 1e-8 if at least 13 of 25 runs find one, else of the
# best values. `p` is that of a two-sided Mann-Whitney test of Sconce against cma's `positive`, whose rules are the same; runs
# without a value below 1e-8 rank behind all others, by their best value. The status is 1 if Sconce is worse with a p below
# 0.01.

defmodule Strategies do
  alias Sconce.Evolve.Strategy

  @goal 1.0e-8
  @seeds 1..25
  @worse 0.01

  def main([path]) do
    {:ok, cases} = :file.consult(path)
    header = ["case", "who", "found", "first quartile", "median", "third quartile", "p"]
    IO.puts(row(header))
    worse = for case <- cases, worse?(case), do: case
    if worse == [], do: :ok, else: exit({:shutdown, 1})
  end

  defp worse?(case) do
    method = if case.separable, do: :sep_cma_es, else: :cma_es

    runs =
      @seeds |> Task.async_stream(&run(case, method, &1), timeout: :infinity, max_concurrency: 25)

    ours = for {:ok, run} <- runs, do: run
    {p, behind?} = mann_whitney(Enum.map(ours, &rank/1), Enum.map(case.positive, &rank/1))
    population = if case.population > 0, do: ", #{case.population} candidates", else: ""
    form = if case.separable, do: "sep-CMA-ES", else: "CMA-ES"
    name = "#{form}, #{case.function} of #{case.size}#{population}"
    all = [{"Sconce", ours}, {"cma, positive", case.positive}, {"cma, active", case.active}]
    # Evaluations for all of a case, or best values for all.
    most = Enum.all?(all, fn {_who, runs} -> found(runs) > 12 end)

    for {{who, runs}, first?} <- Enum.zip(all, [true, false, false]) do
      figures = if most, do: evaluations(runs), else: values(runs)
      p = if first?, do: :erlang.float_to_binary(p, decimals: 3), else: ""

      IO.puts(
        row([if(first?, do: name, else: ""), who, "#{found(runs)} of 25"] ++ figures ++ [p])
      )
    end

    behind? and p < @worse
  end

  defp run(case, method, seed) do
    options = [method: method, sigma: case.sigma, seed: seed, as: :binaries]
    options = if case.population > 0, do: [population: case.population] ++ options, else: options
    {:ok, strategy} = Strategy.new(start(case, seed), options)
    generations(strategy, case, 0, :infinity)
  end

  defp start(%{function: :rosenbrock, size: size}, _seed), do: List.duplicate(0.0, size)
  defp start(%{size: size}, seed), do: for(i <- 0..(size - 1), do: 3 * :math.sin(i + seed))

  defp generations(_strategy, %{most: most}, done, best) when done >= most, do: {:none, best}

  defp generations(strategy, case, done, best) do
    {:ok, %{data: data}} = Strategy.ask(strategy)
    bytes = 4 * strategy.size
    values = for <<row::binary-size(bytes) <- data>>, do: value(case.function, numbers(row))

    case Enum.find_index(values, &(&1 < @goal)) do
      nil ->
        fitness = for value <- values, into: <<>>, do: <<-value::float-64-little>>
        tensor = %{data: fitness, shape: {length(values)}, type: {:f, 64}}
        {:ok, _generation} = Strategy.tell(strategy, tensor)
        generations(strategy, case, done + length(values), Enum.min([best | values]))

      at ->
        {done + at + 1, Enum.at(values, at)}
    end
  end

  defp numbers(row), do: for(<<number::float-32-little <- row>>, do: number)

  defp value(:sphere, x), do: Enum.reduce(x, 0.0, &(&1 * &1 + &2))
  defp value(:rosenbrock, [last]) when is_float(last), do: 0.0

  defp value(:rosenbrock, [x, y | rest]) do
    {a, b} = {y - x * x, 1 - x}
    100 * a * a + b * b + value(:rosenbrock, [y | rest])
  end

  defp value(:rastrigin, x),
    do: Enum.reduce(x, 0.0, &(10 + &1 * &1 - 10 * :math.cos(2 * :math.pi() * &1) + &2))

  defp found(runs), do: Enum.count(runs, fn {evaluations, _best} -> evaluations != :none end)

  # Quartiles of 25 runs are the runs 7, 13 and 19.
  defp quartiles(sorted), do: for(at <- [6, 12, 18], do: Enum.at(sorted, at))

  defp evaluations(runs) do
    sorted = runs |> Enum.map(fn {count, _best} -> count end) |> Enum.sort()
    for count <- quartiles(sorted), do: if(count == :none, do: "none", else: "#{count}")
  end

  defp values(runs) do
    sorted = runs |> Enum.map(fn {_count, best} -> best end) |> Enum.sort()
    for best <- quartiles(sorted), do: :io_lib.format("~.3g", [best])
  end

  defp rank({:none, best}), do: {1, best}
  defp rank({evaluations, _best}), do: {0, evaluations}

  # The p of the normal approximation with ties, and whether the first sample is behind.
  defp mann_whitney(a, b) do
    {n, m} = {length(a), length(b)}
    wins = for x <- a, y <- b, do: if(x > y, do: 1.0, else: if(x == y, do: 0.5, else: 0.0))
    u = Enum.sum(wins)
    ties = for {_value, t} <- Enum.frequencies(a ++ b), do: t * t * t - t
    all = n + m
    variance = n * m / 12 * (all + 1 - Enum.sum(ties) / (all * (all - 1)))
    z = if variance > 0, do: max(abs(u - n * m / 2) - 0.5, 0.0) / :math.sqrt(variance), else: 0.0
    {:math.erfc(z / :math.sqrt(2)), u > n * m / 2}
  end

  defp row([name | rest]) do
    columns = for {text, width} <- Enum.zip(rest, [14, 10, 15, 10, 15, 6]), do: pad(text, width)
    String.trim_trailing(String.pad_trailing(name, 44) <> Enum.join(columns, " "))
  end

  defp pad(text, width), do: text |> IO.iodata_to_binary() |> String.pad_trailing(width)
end

Strategies.main(System.argv())
