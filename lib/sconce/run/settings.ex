defmodule Sconce.Run.Settings do
  @moduledoc false
  # The parts that the settings of all runs share: those of a resumed run, and the number of threads.

  alias Sconce.{Config, Device, Error}
  alias Sconce.Policy.Spec

  @doc """
  Returns a schema without its defaults, so that only given options remain. A resumed run passes only these to the
  native side, which reads the recorded ones itself.
  """
  @spec given(keyword, [atom]) :: keyword
  def given(schema, required) do
    for {name, spec} <- schema do
      {name, spec |> Keyword.delete(:default) |> Keyword.put(:required, name in required)}
    end
  end

  @doc "Adds the remedy `mend` to the error of a folder without a run."
  @spec record({:ok, map} | {:error, Error.t()}, String.t()) :: {:ok, map} | {:error, Error.t()}
  def record({:error, %Error{kind: :not_found} = error}, mend),
    do: {:error, %{error | details: Map.put(error.details, :mend, mend)}}

  def record(answer, _mend), do: answer

  @doc """
  Returns the Spec of the record in the folder `out`. The native side has checked each size. If the sizes do not fit
  each other, `run.json` was changed, and the error is of kind `:corrupt` instead of an `ArgumentError`.
  """
  @spec spec(map, Path.t(), atom) :: {:ok, Spec.t()} | {:error, Error.t()}
  def spec(native, out, op) do
    spec = Spec.from_native(native)
    Spec.new(Spec.to_options(spec))
    {:ok, spec}
  rescue
    error in ArgumentError ->
      details = %{what: Path.join(out, "run.json"), reason: Exception.message(error)}
      {:error, %Error{kind: :corrupt, op: op, details: details}}
  end

  @doc "Expands the `:teacher` of a run: a path, or a list of paths. Raises `ArgumentError` for an empty list."
  @spec teacher(map) :: map
  def teacher(options), do: Map.replace_lazy(options, :teacher, &expanded/1)

  defp expanded(nil), do: nil
  defp expanded(path) when is_binary(path), do: Path.expand(path)
  defp expanded([_ | _] = paths), do: Enum.map(paths, &Path.expand/1)

  defp expanded([]),
    do: raise(ArgumentError, "option :teacher: expected at least one path, got: []")

  @doc """
  Adds the `:precision` of `Sconce.Config` to options that have none. Raises `ArgumentError` for a setting that no run can
  follow.
  """
  @spec precision(keyword) :: keyword
  def precision(options) do
    for name <- [:accumulation_dtype, :distribution], do: Config.get(name)
    Keyword.put_new_lazy(options, :precision, fn -> Config.get(:precision) end)
  end

  @doc """
  Returns the settings of `Sconce.Config` that override options of a preset: a precision that is set anywhere, and the
  cards that a preset on `:cuda` leaves open.
  """
  @spec over_preset(keyword) :: keyword
  def over_preset(options) do
    precision = Config.fetch(:precision)
    device = Config.fetch(:device).value

    if(precision.source == :default, do: [], else: [precision: precision.value]) ++
      if(options[:device] == :cuda and match?({:cuda, _cards}, device),
        do: [device: device],
        else: []
      )
  end

  @doc """
  The options of another attempt of a run: of a saved state only those in `kept`, and all anew otherwise; on its own device if
  `device` is nil.
  """
  @spec again(keyword, [atom], boolean, Device.choice() | nil) :: keyword
  def again(opts, kept, saved?, device) do
    opts = if saved?, do: opts |> Keyword.take(kept) |> Keyword.put(:resume, true), else: opts
    if device, do: Keyword.put(opts, :device, device), else: opts
  end

  @doc "Adds the `:threads` of `Sconce.Config` to native options that have none."
  @spec threads(map) :: map
  def threads(options) do
    case options[:threads] || Config.get(:threads) do
      nil -> options
      threads -> Map.put(options, :threads, threads)
    end
  end
end
