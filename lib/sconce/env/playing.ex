defmodule Sconce.Env.Playing do
  @moduledoc false
  # Plays episodes with a policy on the native side; `Sconce.Env.play/3` and `Sconce.Env.trace/3` describe the results.

  alias Sconce.{Env, Error, Figures, Native, Options, Policy}
  alias Sconce.Env.{Catalogue, Hosting}
  alias Sconce.Native.Call

  @recorded Keyword.keys(Catalogue.schema(:spec))

  @doc "Plays episodes."
  @spec play(Policy.t() | Path.t(), Env.name(), keyword) :: {:ok, map} | {:error, Error.t()}
  def play(policy, name, opts) do
    with {:ok, played} <- played(policy, name, opts, false),
         do: {:ok, Map.merge(played, summary(played.returns))}
  end

  defp summary(returns) do
    %{
      mean: Enum.sum(returns) / length(returns),
      median: Figures.percentile(returns, 50),
      min: Enum.min(returns),
      max: Enum.max(returns)
    }
  end

  @doc "Records an episode."
  @spec trace(Policy.t() | Path.t(), Env.name(), keyword) :: {:ok, map} | {:error, Error.t()}
  def trace(policy, name, opts), do: played(policy, name, opts, true)

  defp played(policy, name, opts, traced?) do
    options = Options.validate!(opts, Catalogue.schema(:play))
    name && Env.name!(name)
    {play, own} = Keyword.split(options, [:episodes, :seed, :deterministic])
    {hosting, own} = Keyword.split(own, [:processes, :step_timeout_ms])

    with {:ok, policy} <- loaded(policy),
         {:ok, env, recorded} <- world(policy, name) do
      native = Map.merge(recorded, Catalogue.to_native(env, own))
      start = &Native.env_play(&1, policy.ref, native, &2, Map.new(play), traced?)
      count = if traced?, do: 1, else: play[:episodes]

      hosted(env, count, hosting, fn host ->
        with :ok <- Env.known!(env, own, host),
             {:ok, played} <- Call.run(&start.(&1, host)),
             do: {:ok, Map.put(played, :env, env)}
      end)
    end
  end

  @doc "Calls `work` with the processes of `count` environments of a module, or with nil for a native environment."
  @spec hosted(Env.name(), pos_integer, keyword, (reference | nil -> result)) ::
          result | {:error, Error.t()}
        when result: term
  def hosted(env, count, hosting, work) do
    if Hosting.world?(env) do
      with {:ok, host} <-
             Hosting.open(env, count, hosting[:processes], hosting[:step_timeout_ms]) do
        try do
          work.(host.ref)
        after
          Hosting.close(host)
        end
      end
    else
      work.(nil)
    end
  end

  defp loaded(%Policy{spec: %Policy.Spec{}} = policy), do: {:ok, policy}
  defp loaded(%Policy{} = other), do: Options.argument!("policy", other, "a policy or a path")
  defp loaded(path), do: Policy.load(path)

  @doc "Returns the environment, and the options that the notes of a run have for it."
  def world(policy, name) do
    with {:ok, %{notes: notes}} <- Policy.info(policy) do
      case {recorded(notes), name} do
        {{own, options}, nil} -> {:ok, own, options}
        {{own, options}, own} -> {:ok, own, options}
        {nil, nil} -> {:error, nameless()}
        {_other, name} -> {:ok, name, %{}}
      end
    end
  end

  defp recorded(%{"env" => %{"env" => name} = options}) do
    native = Enum.find(Env.names(), &(to_string(&1) == name))

    with env when env != nil <- native || Hosting.named(name),
         do:
           {env,
            for(key <- @recorded, value = options[to_string(key)], into: %{}, do: {key, value})}
  end

  defp recorded(_notes), do: nil

  defp nameless do
    details = %{
      what: "environment",
      expected: "a name",
      got: "none, and the policy's notes name none that is found"
    }

    %Error{kind: :mismatch, op: :play, details: details}
  end
end
