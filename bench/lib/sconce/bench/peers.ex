defmodule Sconce.Bench.Peers do
  @moduledoc false
  # Other libraries on the same work: rows of `bench/peers/run.py`, and the rows of Sconce that they are
  # compared with.

  alias Sconce.Bench.{Case, Output}
  alias Sconce.Figures

  @runner Path.expand("../../../peers/run.py", __DIR__)

  # {beginning of Sconce's title, cases of the peers}, with equal batch and threads. Sconce's decisions are
  # compared with bare forwards of one frame by peers, without embedding, sampling and reply.
  @same [
    {"act mlp 512 512, packed 288, one frame", ["policy_fused", "quant"]},
    {"act gru 256x2, packed 288, one frame", "gru_step"},
    {"act lstm 256x2, packed 288, one frame", "lstm_step"},
    {"act mamba 256x2, packed 288, one frame", "mamba_step"},
    {"act sliding_window 256x2, packed 288, one frame", "attn_step"},
    {"train mlp 512 512, packed 288", "train_mlp"},
    {"train lstm 256x2, packed 288", "train_lstm"},
    {"train gru 256x2, packed 288", "train_gru"},
    {"train mamba 256x2, packed 288", "train_mamba"},
    {"train sliding_window 256x2, packed 288", "train_attn"},
    {"forward lstm 256x2, packed 288", "lstm_full"},
    {"forward gru 256x2, packed 288", "gru_full"},
    {"forward mamba 256x2, packed 288", "mamba_full"},
    {"forward sliding_window 256x2, packed 288", "attn_full"},
    {"env cart_pole, ", ["cartpole", "cartpole_scan128"]},
    {"env mountain_car, ", "mountain_car"},
    {"env pendulum, ", "pendulum"},
    {"ppo cart_pole, an update", "ppo_update"},
    {"ppo cart_pole, from start_link", "ppo_solve_475"}
  ]

  @columns [
    {"case", 54, :left},
    {"batch", 5, :right},
    {"threads", 7, :right},
    {"median_us", 10, :right},
    {"p99_us", 10, :right},
    {"limit_us", 9, :right},
    {"peer_us", 10, :right},
    {"of_peer", 7, :right},
    {"peak", 8, :right},
    {"peer_peak", 9, :right},
    {"peer", 0, :left}
  ]

  @doc "The rows of a results file."
  @spec read(Path.t()) :: {:ok, [map]} | {:error, String.t()}
  def read(path) do
    with {:ok, text} <- File.read(path),
         rows = for(line <- String.split(text, "\n", trim: true), do: parse(line)),
         [_ | _] = measured <- Enum.filter(rows, &measured?/1) do
      {:ok, Enum.map(measured, &of_a_step/1)}
    else
      [] -> {:error, "#{path}: no row of a peer"}
      {:error, reason} -> {:error, "#{path}: #{:file.format_error(reason)}"}
    end
  end

  # A peer that failed on a case has a row with the reason.
  defp measured?(row), do: Enum.all?(~w(peer case batch threads median_us), &is_map_key(row, &1))

  # A case that ends in _scanN times N steps of environments in one call.
  defp of_a_step(%{"case" => name, "median_us" => us} = row) do
    case Regex.run(~r/_scan(\d+)\z/, name, capture: :all_but_first) do
      [steps] -> %{row | "median_us" => us / String.to_integer(steps)}
      nil -> row
    end
  end

  @doc """
  Parses a flat JSON object of texts, numbers, booleans and nulls.

      iex> Sconce.Bench.Peers.parse(~S({"peer": "jax", "median_us": 1e-05, "n": 5, "other": null}))
      %{"peer" => "jax", "median_us" => 1.0e-5, "n" => 5, "other" => nil}
  """
  @spec parse(String.t()) :: map
  def parse(line) do
    for [_, key, value] <- Regex.scan(~r/"(\w+)":\s*("(?:[^"\\]|\\.)*"|[^\s,}]+)/, line),
        into: %{},
        do: {key, value(value)}
  end

  defp value(<<?", text::binary>>), do: binary_part(text, 0, byte_size(text) - 1)
  defp value("null"), do: nil
  defp value(flag) when flag in ["true", "false"], do: flag == "true"

  defp value(number) do
    case Integer.parse(number) do
      {integer, ""} -> integer
      _ -> number |> Float.parse() |> elem(0)
    end
  end

  @doc """
  Measures the peers of some cases with the runner. `SCONCE_PEERS` is the folder of the shared benchmarks,
  `PEERS_DIR` their environment.
  """
  @spec measure([Case.t()], float) :: {:ok, [map]} | {:error, String.t()}
  def measure(cases, budget) do
    cond do
      Enum.all?(cases, &(theirs(&1) == [])) -> {:error, "no peer has any of these cases"}
      !System.get_env("SCONCE_PEERS") -> {:error, "SCONCE_PEERS is not set"}
      !File.exists?(@runner) -> {:error, "no #{@runner}"}
      true -> run(cases, budget)
    end
  end

  defp run(cases, budget) do
    path = Path.join(System.tmp_dir!(), "sconce-peers-#{System.pid()}.json")
    {only, threads} = selection(cases)
    switches = ["--only", only, "--threads", threads, "--budget", to_string(budget)]

    try do
      case System.cmd("python3", [@runner, path | switches]) do
        {_printed, 0} -> read(path)
        {_printed, status} -> {:error, "#{@runner} ended with status #{status}"}
      end
    rescue
      error in ErlangError -> {:error, "python3: #{inspect(error.original)}"}
    after
      File.rm(path)
    end
  end

  @doc "The runner's selection: a regular expression on peer, case and batch, and the threads."
  @spec selection([Case.t()]) :: {String.t(), String.t()}
  def selection(cases) do
    shared = for bench <- cases, theirs <- theirs(bench), do: {bench, theirs}
    keys = for {bench, theirs} <- shared, uniq: true, do: "#{theirs} #{bench.batch}"
    threads = for {bench, _theirs} <- shared, uniq: true, do: bench.threads
    {" (#{Enum.join(keys, "|")})$", threads |> Enum.sort() |> Enum.join(",")}
  end

  @doc "The peers' names for a case or a row; empty if the peers lack that case."
  @spec theirs(map) :: [String.t()]
  def theirs(ours) do
    title = Case.title(ours)

    for {begins, theirs} <- @same,
        String.starts_with?(title, begins),
        name <- List.wrap(theirs),
        do: name
  end

  @doc """
  The fastest f32 peer of a row: `peer`, `peer_us`, `of_peer` (Sconce's time as a fraction of the peer's),
  and `peer_peak_bytes` and `peer_other` if known. An empty map if no peer was measured. A row in
  another format also has `rival`, `rival_us` and `of_rival`: the fastest peer in that format.

  If a peer's row was measured more than once, such as before and after Sconce, the fastest counts.
  """
  @spec beside(map, [map]) :: map
  def beside(%{ok: false}, _peers), do: %{}

  def beside(row, peers) do
    at = %{"batch" => row.batch, "threads" => row.threads}
    theirs = theirs(row)
    same = Enum.filter(peers, &(&1["case"] in theirs and same?(&1, at)))

    case fastest(same, :f32) do
      nil ->
        %{}

      fastest ->
        row
        |> rival(same)
        |> Map.merge(%{
          peer: fastest["peer"],
          peer_us: fastest["median_us"],
          of_peer: row.median_us / fastest["median_us"],
          peer_other: fastest["other"],
          peer_peak_bytes: peak(fastest, peers)
        })
    end
  end

  defp same?(peer, at), do: Map.take(peer, Map.keys(at)) == at

  defp fastest(peers, format) do
    peers
    |> Enum.filter(&(format(&1["peer"]) == format))
    |> Enum.min_by(& &1["median_us"], fn -> nil end)
  end

  # A peer's name contains the format, as in onnxruntime-uint8, torch-int_mm, openvino-bf16.
  defp format(peer) do
    cond do
      peer =~ ~r/int8|int_mm/ -> :int8
      peer =~ "bf16" -> :bf16
      true -> :f32
    end
  end

  defp rival(%{extra: %{format: format}} = row, same) when format != :f32 do
    case fastest(same, format) do
      nil ->
        %{}

      %{"peer" => rival, "median_us" => us} ->
        %{rival: rival, rival_us: us, of_rival: row.median_us / us}
    end
  end

  defp rival(_in_f32, _same), do: %{}

  # Memory is measured in separate rows, each in its own process.
  defp peak(%{"case" => "train_" <> model} = fastest, peers) do
    at = fastest |> Map.take(~w(peer batch threads)) |> Map.put("case", "memory_" <> model)
    Enum.find_value(peers, &(same?(&1, at) && &1["peak_bytes"]))
  end

  defp peak(_forward, _peers), do: nil

  @doc "The rows that have a peer, as a table; nil if none has."
  @spec table([map]) :: String.t() | nil
  def table(rows) do
    case for %{extra: %{peer: _}} = row <- rows, do: cells(row) do
      [] -> nil
      lines -> Enum.map_join([titles() | lines], "\n", &Output.line(@columns, &1))
    end
  end

  defp titles, do: for({title, _width, _side} <- @columns, do: title)

  defp cells(%{extra: extra} = row) do
    [
      Case.title(row),
      to_string(row.batch),
      to_string(row.threads),
      Figures.decimal(row.median_us),
      Figures.decimal(row.p99_us),
      Figures.decimal(row.limit_us),
      Figures.decimal(extra.peer_us),
      fraction(extra.of_peer),
      size(extra[:peak_bytes]),
      size(extra.peer_peak_bytes),
      extra.peer <> rival_text(extra)
    ]
  end

  defp rival_text(%{rival: rival, rival_us: us, of_rival: of}),
    do: "; #{fraction(of)} of #{rival}, #{Figures.decimal(us)}"

  defp rival_text(_alone), do: ""

  defp fraction(value), do: :erlang.float_to_binary(value, decimals: 2)

  defp size(nil), do: "-"
  defp size(bytes), do: Figures.size(bytes)
end
