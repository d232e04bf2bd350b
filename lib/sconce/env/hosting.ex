defmodule Sconce.Env.Hosting do
  @moduledoc false
  # Worlds that are modules: their names, their descriptions, and the processes that step them.

  alias Sconce.{Error, Native}
  alias Sconce.Env.{Host, World}

  @enforce_keys [:ref, :pids]
  defstruct @enforce_keys

  @doc "Returns whether a term names a world: a module, or `{module, options}`."
  @spec world?(term) :: boolean
  def world?({module, _options}), do: world?(module)

  def world?(module) when is_atom(module) and module not in [nil, true, false] do
    match?({:module, _}, Code.ensure_loaded(module)) and function_exported?(module, :spec, 1) and
      (function_exported?(module, :step, 2) or function_exported?(module, :step, 3))
  end

  def world?(_other), do: false

  @doc "Returns the name of a world as text, as a record keeps it."
  @spec text(module | {module, term}) :: String.t()
  def text({module, []}), do: inspect(module)
  def text(world), do: inspect(world, limit: :infinity, printable_limit: :infinity)

  @doc "Returns a short name for a picture or a line of text."
  @spec label(Sconce.Env.name()) :: String.t()
  def label({module, _options}), do: inspect(module)
  def label(name), do: if(world?(name), do: inspect(name), else: to_string(name))

  @doc "Returns the world that a record names, if it is a module without options that exists."
  @spec named(String.t()) :: module | nil
  def named(text) do
    if text =~ ~r/^[A-Z][A-Za-z0-9_.]*$/ do
      module = Module.safe_concat([text])
      if world?(module), do: module
    end
  rescue
    # No such atom.
    ArgumentError -> nil
  end

  @doc "Returns a handle without processes, which describes a world; nil for a native environment."
  @spec described(Sconce.Env.name()) :: {:ok, reference | nil} | {:error, Error.t()}
  def described(name),
    do: if(world?(name), do: Native.host_new([], spec!(name), 1, 1), else: {:ok, nil})

  @doc """
  Starts the processes of `count` environments, which end with the caller. `processes` is nil for one on each scheduler.
  """
  @spec open(module | {module, term}, pos_integer, pos_integer | nil, pos_integer) ::
          {:ok, %__MODULE__{}} | {:error, Error.t()}
  def open(world, count, processes, deadline_ms) do
    {module, options} = split(world)
    # A wrong description raises here, before there are processes.
    spec = spec!(world)
    number = min(processes || System.schedulers_online(), count)

    pids =
      for _process <- 1..number do
        {:ok, pid} = Host.start(module, options, spec.masks, self())
        pid
      end

    case Native.host_new(pids, spec, count, deadline_ms) do
      {:ok, ref} ->
        for pid <- pids, do: send(pid, {:host, ref})
        {:ok, %__MODULE__{ref: ref, pids: pids}}

      refused ->
        Enum.each(pids, &Process.exit(&1, :kill))
        refused
    end
  end

  @doc "Ends the processes, also one that hangs."
  @spec close(%__MODULE__{}) :: :ok
  def close(%__MODULE__{pids: pids}), do: Enum.each(pids, &Process.exit(&1, :kill))

  defp spec!(world) do
    {module, options} = split(world)
    module |> World.described!(options) |> World.to_native(text(world))
  end

  defp split({_module, _options} = world), do: world
  defp split(module), do: {module, []}
end
