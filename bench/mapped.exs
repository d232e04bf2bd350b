# Load time and memory of policies whose packed weights are mapped, beside those of policies that are packed:
#
#     cd bench && mix run mapped.exs | tee mapped.txt    # some minutes
#
# Each row is a fresh OS process, which loads a checkpoint, opens a session and decides once, after a small policy has
# loaded the code; the median of five, in turns. `private` is the memory that only this process has, beyond that of the
# small policy, and `shared` are pages of the file. The file is in the page cache.
#
# The last table compares decisions of one process in turns: 31 pairs of calls by a session over packed weights in memory and
# by one over mapped ones, and the ratio with the interval of half of the pairs. Both have the same logits, bit for bit.

defmodule Mapped do
  alias Sconce.{Policy, Session}

  @vector [embedding: {:vector, 288}, heads: [move: {:categorical, 30}]]
  @policies [
    {"mlp 512x512", backbone: :mlp, hidden_sizes: [512, 512]},
    {"gru 256x2", backbone: :gru, hidden_size: 256, num_layers: 2},
    {"attention 256x2", backbone: :sliding_window, hidden_size: 256, num_layers: 2},
    {"gru 1024x4", backbone: :gru, hidden_size: 1024, num_layers: 4}
  ]
  @ways [
    {"packed", []},
    {"mapped", [packed: true]},
    {"mapped alone", [packed: true, weights: false]}
  ]
  @runs 5
  @pairs 31

  def main([]) do
    dir = Path.join(System.tmp_dir!(), "sconce-mapped-#{System.pid()}")
    File.mkdir_p!(dir)

    try do
      files =
        for {name, own} <- @policies, format <- [:f32, :int8], do: file!(name, own, format, dir)

      IO.puts(
        line(["policy", "weights", "", "MB", "load ms", "open ms", "act ms", "private", "shared"])
      )

      for file <- files, row <- rows(file), do: IO.puts(line(row))

      IO.puts(
        "\n" <>
          line(["policy", "weights", "", "", "packed us", "mapped us", "ratio", "from", "to"])
      )

      for file <- files, do: IO.puts(line(pairs(file)))
    after
      File.rm_rf!(dir)
    end
  end

  def main(["one", path, format]) do
    small = Path.join(Path.dirname(path), "small.safetensors")
    {_us, {:ok, _action}} = decide(small, "stored")
    before = memory()
    {us, {:ok, _action}} = decide(path, format)
    now = memory()
    own = for key <- [:private, :shared], do: now[key] - before[key]
    IO.puts(Enum.join(us ++ own, " "))
  end

  defp decide(path, format) do
    {load, {:ok, policy}} = :timer.tc(fn -> Policy.load(path) end)
    opts = [seed: 1, weights: String.to_existing_atom(format)]
    {open, {:ok, session}} = :timer.tc(fn -> Session.open(policy, opts) end)
    {act, acted} = :timer.tc(fn -> Session.act(session, frame(policy)) end)
    Process.put(path, {policy, session})
    {[load, open, act], acted}
  end

  defp frame(policy), do: for(i <- 1..policy.raw_width, do: :math.sin(i))

  # Kilobytes of the process.
  defp memory do
    :erlang.garbage_collect()
    lines = File.read!("/proc/self/smaps_rollup")

    field = fn name ->
      Regex.run(~r/^#{name}: +(\d+) kB/m, lines) |> Enum.at(1) |> String.to_integer()
    end

    private = field.("Private_Dirty")
    %{private: private, shared: field.("Rss") - private}
  end

  defp file!(name, own, format, dir) do
    small = Path.join(dir, "small.safetensors")

    {:ok, policy} =
      Policy.init(
        embedding: {:vector, 1},
        backbone: :mlp,
        hidden_sizes: [8],
        heads: [go: {:bernoulli, 1}]
      )

    :ok = Policy.save(policy, small)
    {:ok, policy} = Policy.init(@vector ++ own, seed: 1)

    paths =
      for {way, opts} <- @ways, into: %{} do
        path = Path.join(dir, String.replace("#{name} #{format} #{way}", " ", "-"))
        opts = if opts[:packed], do: Keyword.put(opts, :packed, format), else: opts
        :ok = Policy.save(policy, path, opts)
        {way, path}
      end

    {name, format, paths}
  end

  defp rows({name, format, paths}) do
    found =
      for _run <- 1..@runs, {way, _opts} <- @ways do
        args = ["run", "--no-compile", "mapped.exs", "one", paths[way], to_string(format)]
        {out, 0} = System.cmd("mix", args)
        {way, out |> String.split() |> Enum.map(&String.to_integer/1)}
      end

    for {way, _opts} <- @ways do
      [load, open, act, private, shared] =
        for({^way, numbers} <- found, do: numbers) |> Enum.zip_with(&median/1)

      mega = fn kilo -> Float.round(kilo / 1024, 1) end
      size = Float.round(File.stat!(paths[way]).size / 1.0e6, 1)
      times = for us <- [load, open, act], do: Float.round(us / 1000, 2)
      [name, format, way, size] ++ times ++ [mega.(private), mega.(shared)]
    end
  end

  defp pairs({name, format, paths}) do
    [packed, mapped] =
      for way <- ["packed", "mapped alone"] do
        {:ok, policy} = Policy.load(paths[way])

        {:ok, session} =
          Session.open(policy, seed: 1, weights: format, mode: :carry, lane: lane(name))

        {:ok, _action} = Session.act(session, frame(policy))
        {session, frame(policy)}
      end

    calls = if name =~ "1024", do: 40, else: 1000

    time = fn {session, frame} ->
      elem(:timer.tc(fn -> for(_ <- 1..calls, do: Session.act(session, frame)) end), 0) / calls
    end

    both = for _pair <- 1..@pairs, do: {time.(packed), time.(mapped)}
    ratios = both |> Enum.map(fn {one, other} -> other / one end) |> Enum.sort()
    us = for part <- [0, 1], do: both |> Enum.map(&elem(&1, part)) |> median() |> Float.round(2)

    from_to =
      for part <- [0.5, 0.25, 0.75],
          do: ratios |> Enum.at(round(part * (@pairs - 1))) |> Float.round(3)

    [name, format, "", ""] ++ us ++ from_to
  end

  # A large policy decides on a worker, whose message takes the same time in both.
  defp lane(name), do: if(name =~ "1024", do: :worker, else: :auto)

  defp median(numbers), do: numbers |> Enum.sort() |> Enum.at(div(length(numbers), 2))

  defp line(cells) do
    widths = [16, 8, 13, 7, 10, 10, 8, 9, 8]

    Enum.zip(cells, widths)
    |> Enum.with_index()
    |> Enum.map_join(" ", fn {{cell, width}, at} ->
      if at in [0, 1, 2],
        do: String.pad_trailing("#{cell}", width),
        else: String.pad_leading("#{cell}", width)
    end)
  end
end

Mapped.main(System.argv())
