# shellcheck shell=bash
# Completion of zerotrain's command line for bash. Commands and options are read from --help, so they
# are those of the program that is installed.

_zerotrain() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} program=${COMP_WORDS[0]}
    local command=train commands words option
    COMPREPLY=()
    commands=$("$program" --help 2>/dev/null |
        sed -n '/^Commands:/,/^$/s/^  \([a-z][a-z]*\) .*/\1/p' | tr '\n' ' ')
    if [ "$COMP_CWORD" -gt 1 ]; then
        case " $commands " in
        *" ${COMP_WORDS[1]} "*) command=${COMP_WORDS[1]} ;;
        esac
    fi

    # bash cuts words at '=': the option is one word before it, or two.
    option=$prev
    [ "$prev" != "=" ] || option=${COMP_WORDS[COMP_CWORD - 2]}
    [ "$cur" != "=" ] || { option=$prev cur=; }
    case $option in
    --device) words="cpu cuda auto" ;;
    --collectives) words="nccl staged auto" ;;
    --launcher) words="ssh openssh slurm" ;;
    --profile) words="fast slow cpu" ;;
    --dtype) words="fp32 bf16 fp16" ;;
    --format) words="text markdown csv" ;;
    --log_dir | --enable_each_rank_log | --resume)
        mapfile -t COMPREPLY < <(compgen -d -- "$cur")
        compopt -o filenames
        return
        ;;
    --deepspeed_config | --env_file | --hostfile | --output | --remote_path | --svg)
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
        compopt -o filenames
        return
        ;;
    --num_gpus | --num_nodes | --max_restarts | --ssh_port | --include | --exclude | --devices_per_gpu | --set | --seed | --device_memory | --host_memory | --fit | --largest_layer | --rank | --warmup | --max_shard_size | --step | --vocab_size) return ;;
    *)
        if [[ $cur == -* ]]; then
            words=$("$program" "$command" --help 2>/dev/null | grep -oE '^  --[a-z_]+=?')
            compopt -o nospace
        else
            [ "$COMP_CWORD" -gt 1 ] || mapfile -t COMPREPLY < <(compgen -W "$commands" -- "$cur")
            mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$cur")
            compopt -o filenames
            return
        fi
        ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
}

complete -F _zerotrain zerotrain
