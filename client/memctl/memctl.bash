# Completion of memctl for bash. Names of segments come from the daemon when it answers at once.
_memctl() {
  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}
  local commands="status devices sessions holders leases segments quarantine events completion"
  local options="--socket --timeout --json --help --version"
  local command="" rm="" socket=() i
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    case ${COMP_WORDS[i]} in
      --socket) socket=(--socket "${COMP_WORDS[i+1]}"); ((i++)) ;;
      --timeout | --prefix) ((i++)) ;;
      -*) ;;
      rm) [[ $command == segments ]] && rm=1 ;;
      *) [[ -z $command ]] && command=${COMP_WORDS[i]} ;;
    esac
  done
  case $previous in
    --socket)
      mapfile -t COMPREPLY < <(compgen -f -- "$word")
      compopt -o filenames 2>/dev/null
      return
      ;;
    --timeout | --prefix) return ;;
  esac
  local words="$options"
  case $command in
    "") words="$commands $options" ;;
    completion) words="bash" ;;
    segments)
      if [[ -n $rm ]]; then
        words=$(memctl "${socket[@]}" --timeout 1 segments 2>/dev/null |
          awk 'NR > 1 && $2 == "sealed" { print $1 }')
      else
        words="rm --prefix $options"
      fi
      ;;
  esac
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}
complete -F _memctl memctl
