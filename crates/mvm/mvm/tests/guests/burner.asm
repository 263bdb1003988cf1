; burner: a guest that takes all the processor time it gets, for tests of who gets how much.
;   s   spin and count      f   flood the serial port
;   ?   say the count: eight letters, `a` for 0 to `p` for 15, lowest digit pair first
;   LF  . LF
; It answers while it burns.
bits 16
org 0x7C00
count   equ 0x7E00

        jmp 0:start
start:  cli
        cld
        xor ax, ax
        mov ds, ax
        mov ss, ax
        mov sp, 0x7C00
        mov word [0x0C * 4], serial     ; IRQ 4 arrives as vector 0x0C
        mov [0x0C * 4 + 2], ax
        mov al, 0xEF            ; only IRQ 4
        out 0x21, al
        mov dx, 0x3FC
        mov al, 0x0B            ; DTR, RTS, and the gate to the interrupt line
        out dx, al
        mov dx, 0x3F9
        mov al, 0x01            ; interrupt on received data
        out dx, al
        sti
sleep:  hlt
        jmp sleep

serial: mov dx, 0x3F8
        in al, dx
        cmp al, 's'
        je spin
        cmp al, 'f'
        je flood
        cmp al, '?'
        je say
        cmp al, 10
        jne done
        mov al, '.'
        out dx, al
        mov al, 10
        out dx, al
done:   mov al, 0x20            ; end of interrupt
        out 0x20, al
        iret

say:    mov si, count
        mov bl, 4
digits: lodsb
        mov ah, al
        and al, 0x0F
        add al, 'a'
        out dx, al
        mov al, ah
        shr al, 4
        add al, 'a'
        out dx, al
        dec bl
        jnz digits
        jmp done

spin:   mov al, 0x20
        out 0x20, al
        sti
again:  inc dword [count]
        jmp again

flood:  mov al, 0x20
        out 0x20, al
        sti
more:   mov cx, 0xFFFF
        rep outsb
        jmp more

        times 510 - ($ - $$) db 0
        dw 0xAA55
