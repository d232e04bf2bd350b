defmodule Sconce.League.Players do
  @moduledoc false
  # The players of a league: their names, the members of a run's folder, and policies of files.

  alias Sconce.{Env, Error, Options, Policy}
  alias Sconce.PPO.Settings

  @typedoc "A name, and a scripted player, a path or a policy."
  @type named :: {String.t(), atom | Path.t() | Policy.t()}

  @doc "Returns all players with their names; `env` is nil if a policy names it."
  @spec named!([Sconce.League.player()], Env.name() | nil) :: [named]
  def named!(players, env) do
    is_list(players) || Options.argument!("players", players, "a list of players")
    scripts = scripts(env)
    players |> Enum.map(&given!/1) |> Enum.map(&members(&1, scripts)) |> named()
  end

  # The names of scripted players, which win over folders of these names.
  defp scripts(nil), do: Enum.flat_map(Env.names(), &scripts/1)

  defp scripts(env) do
    case Env.spec(env) do
      {:ok, spec} -> spec.players
      {:error, _error} -> []
    end
  end

  # Returns a player with its given name, which may be nil.
  defp given!({name, %Policy{} = policy}) when is_binary(name), do: {name, policy}

  defp given!({name, player}) when is_binary(name) do
    {_name, player} = given!(player)
    {name, player}
  end

  defp given!(name) when is_atom(name) and name not in [nil, true, false], do: {nil, name}

  defp given!(text) when is_binary(text) do
    Path.basename(text) == "" && Options.argument!("player", text, "a name or a path")
    {nil, Options.path!(text)}
  end

  defp given!(other), do: Options.argument!("player", other, "a name, a path or {name, player}")

  # The members of one argument, each with a short and a long name. The folder of a run becomes its past selves and its
  # last policy.
  defp members({name, path}, scripts) when is_binary(path) do
    if path not in scripts and File.dir?(path) do
      for {part, file} <- past(path) ++ [{"last", Path.join(path, "last.safetensors")}],
          do: {Path.join(name || Path.basename(path), part), Path.join(name || path, part), file}
    else
      [{name || ending(path), name || Path.rootname(path, ".safetensors"), path}]
    end
  end

  defp members({name, player}, _scripts) do
    name = name || to_string(player)
    [{name, name, player}]
  end

  # The last two parts of a path: each run has a file of the same name.
  defp ending(path) do
    parts = path |> Path.split() |> Enum.take(-2)
    parts |> List.delete("/") |> Path.join() |> Path.rootname(".safetensors")
  end

  # The members of an argument have their short names if no other argument has one of them.
  defp named(arguments) do
    counts = arguments |> List.flatten() |> Enum.frequencies_by(&elem(&1, 0))

    Enum.flat_map(arguments, fn members ->
      short? = Enum.all?(members, fn {short, _long, _player} -> counts[short] == 1 end)
      for {short, long, player} <- members, do: {if(short?, do: short, else: long), player}
    end)
  end

  defp past(folder) do
    folder = Path.join(folder, "league")

    case File.ls(folder) do
      {:ok, files} ->
        for file <- Enum.sort(files),
            String.starts_with?(file, "self-") and String.ends_with?(file, ".safetensors"),
            do: {number(file), Path.join(folder, file)}

      # A run without past selves has no such folder.
      {:error, _reason} ->
        []
    end
  end

  # self-00000020.safetensors becomes self-20.
  defp number(file),
    do: file |> Path.rootname(".safetensors") |> String.replace(~r/-0+(?=\d)/, "-")

  @doc "Loads the policies of files. Raises `ArgumentError` for two players of one name."
  @spec load([named]) :: {:ok, [{String.t(), String.t() | Policy.t()}]} | {:error, Error.t()}
  def load(players) do
    names = for {name, _player} <- players, do: name

    for name <- names -- Enum.uniq(names),
        do: raise(ArgumentError, "two players are named #{inspect(name)}: give {name, player}")

    Enum.reduce_while(players, {:ok, []}, fn {name, player}, {:ok, all} ->
      case loaded(player) do
        {:ok, player} -> {:cont, {:ok, all ++ [{name, player}]}}
        {:error, _error} = failure -> {:halt, failure}
      end
    end)
  end

  defp loaded(player) when is_atom(player), do: {:ok, to_string(player)}

  defp loaded(text) when is_binary(text),
    do: if(Settings.file?(text), do: Policy.load(text), else: {:ok, text})

  defp loaded(policy), do: {:ok, policy}
end
