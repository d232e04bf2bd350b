defmodule Sconce.Env.Gymnasium do
  @moduledoc """
  Environments of Python's Gymnasium, over a port.

      {:ok, run} = Sconce.PPO.start_link(env: {Sconce.Env.Gymnasium, id: "LunarLander-v3"}, out: "lander")
      {:ok, report} = Sconce.PPO.await(run)

      world = {Sconce.Env.Gymnasium, id: "LunarLander-v3"}
      {:ok, played} = Sconce.Env.play("lander/best.safetensors", world)

  | option | meaning |
  |---|---|
  | `:id` | name of the environment, as `gymnasium.make` takes it; required |
  | `:python` | the interpreter, by default `"python3"`; its packages must have gymnasium |
  | `:make` | further arguments of `gymnasium.make`, numbers, booleans and strings by name |
  | `:import` | a Python module to import first, one that registers environments |

  Each process of a run has a Python process of its own, which steps all its environments for one message. Observations
  are flattened. An action is `Discrete`, `MultiDiscrete`, `MultiBinary`, or a `Box` whose numbers have one range.
  Environments have the time limits of their registration.

  An environment with a method `action_masks()`, as MaskablePPO of sb3-contrib reads it, or with `action_mask` in its infos
  has action masks.

  The state of such environments cannot be saved: a run that resumes begins new episodes. An error in Python has its
  traceback in the message, and a Python process that ends is an error of kind `:panic`.
  """

  @behaviour Sconce.Env.Batch

  alias Sconce.Options

  @source Path.join(__DIR__, "gymnasium.py")
  @external_resource @source
  @script File.read!(@source)

  @schema [
    id: [type: :string, required: true],
    python: [type: :string, default: "python3"],
    make: [type: :keyword, default: []],
    import: [type: {:or, [nil, :string]}, default: nil]
  ]

  # A program that ends breaks the port, and a broken port ends its owner. So this is a process of its own.
  @impl true
  def spec(options) do
    {_pid, monitor} = spawn_monitor(fn -> exit(described(options)) end)

    receive do
      {:DOWN, ^monitor, _, _, {:spec, spec}} -> spec
      {:DOWN, ^monitor, _, _, {:error, error}} -> raise error
      {:DOWN, ^monitor, _, _, reason} -> raise RuntimeError, ended(options, inspect(reason))
    end
  end

  defp described(options) do
    {port, options} = start!(options)
    text = ask!({port, options}, "d" <> name(options))
    stop(port)
    {:spec, parsed(text)}
  rescue
    error -> {:error, error}
  end

  # The module to import is a part of the name for `gymnasium.make`.
  defp name(options),
    do: if(options[:import], do: options[:import] <> ":" <> options[:id], else: options[:id])

  defp parsed(text) do
    {own, parts} =
      text
      |> String.split("\n")
      |> Enum.map(&String.split/1)
      |> Enum.split_with(&(hd(&1) in ["observation", "limit", "masks"]))

    [["observation", size], ["limit", limit], ["masks", masks]] = own

    %{
      observation_size: String.to_integer(size),
      time_limit: String.to_integer(limit),
      masks: masks == "1",
      # The names are those of the script, with indices.
      input: for([kind, name | rest] <- parts, do: {String.to_atom(name), type(kind, rest)})
    }
  end

  defp type("choice", [n]), do: {:choice, String.to_integer(n)}
  defp type("flags", [n]), do: {:flags, for(i <- 1..String.to_integer(n), do: :"flag_#{i}")}

  defp type("continuous", [n, low, high]),
    do: {:continuous, String.to_integer(n), String.to_float(low), String.to_float(high)}

  @impl true
  def open(%{options: options, count: count}) do
    # The end of the program is then a message, which `ask!/2` reads.
    Process.flag(:trap_exit, true)
    {port, options} = start!(options)
    <<size::32-little>> = ask!({port, options}, "o" <> <<count::32-little>> <> name(options))
    %{port: port, options: options, count: count, mask_bytes: count * size, masks: ""}
  end

  @impl true
  def reset(begins, state) do
    entries = for begin <- begins, into: <<>>, do: <<begin.at::32-little, begin.seed::64-little>>
    state |> ask!("r" <> entries) |> split_masks(state)
  end

  @impl true
  def step(inputs, active, %{count: count} = state) do
    {answer, state} = state |> ask!(["s", active, inputs]) |> split_masks(state)
    seen = byte_size(answer) - 5 * count
    numbers = 4 * count

    <<observations::binary-size(seen), rewards::binary-size(numbers), flags::binary>> = answer
    {observations, rewards, flags, state}
  end

  # The masks of all environments are the end of an answer.
  defp split_masks(answer, %{mask_bytes: bytes} = state) do
    rest = byte_size(answer) - bytes
    <<answer::binary-size(rest), masks::binary>> = answer
    {answer, %{state | masks: masks}}
  end

  @impl true
  def action_masks(%{masks: masks}), do: masks

  @impl true
  def close(%{port: port}), do: stop(port)

  defp start!(options) do
    options = Options.validate!(options, @schema)

    path =
      System.find_executable(options[:python]) ||
        raise ArgumentError, "option :python: no program #{inspect(options[:python])}"

    args = ["-c", @script, json(options[:make])]
    flags = [:binary, :nouse_stdio, :exit_status, packet: 4, args: args]
    {Port.open({:spawn_executable, path}, flags), options}
  end

  defp json(pairs) do
    "{" <>
      Enum.map_join(pairs, ",", fn {name, value} -> ~s("#{name}":#{value!(value)}) end) <> "}"
  end

  defp value!(value) when is_number(value) or is_boolean(value), do: to_string(value)
  defp value!(nil), do: "null"

  defp value!(text) when is_binary(text),
    do: ~s("#{String.replace(text, ["\\", "\""], &"\\#{&1}")}")

  defp value!(other), do: Options.argument!("make", other, "numbers, booleans and strings")

  defp ask!(%{port: port, options: options}, request), do: ask!({port, options}, request)

  defp ask!({port, options}, request) do
    command(port, request) || raise RuntimeError, ended(options, status(port))

    receive do
      {^port, {:data, <<1, answer::binary>>}} -> answer
      {^port, {:data, <<0, text::binary>>}} -> raise RuntimeError, "Python: #{String.trim(text)}"
      {^port, {:exit_status, status}} -> raise RuntimeError, ended(options, status)
      {:EXIT, ^port, reason} -> raise RuntimeError, ended(options, inspect(reason))
    end
  end

  # The status of a port that has closed is in the mailbox, unless something has read it.
  defp status(port) do
    receive do
      {^port, {:exit_status, status}} -> status
    after
      0 -> "unknown"
    end
  end

  defp command(port, request) do
    Port.command(port, request)
  rescue
    ArgumentError -> false
  end

  defp ended(options, status) do
    python = options[:python] || @schema[:python][:default]
    "#{python} ended with status #{status}: has #{python} the package gymnasium?"
  end

  defp stop(port) do
    Port.close(port)
  rescue
    # It has ended by itself.
    ArgumentError -> true
  end
end
