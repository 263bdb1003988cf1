; A guest that echoes its serial port, and runs the 64 bytes that follow a byte 255.
bits 16
org 0x7c00
        cli
        xor ax, ax
        mov ds, ax
        mov es, ax
        mov ss, ax
        mov sp, 0x7c00
        mov word [0x30], serial
        mov [0x32], ax
        mov byte [left], 0
        mov al, 0xef
        out 0x21, al
        mov dx, 0x3fc           ; the gate to the interrupt line
        mov al, 0x0b
        out dx, al
        mov dx, 0x3f9
        mov al, 1
        out dx, al
        sti
sleep:  hlt
        jmp sleep

serial: push ax
        push dx
        push di
        jmp more                ; a byte that came while the one before was handled has been read by then
next:   mov dx, 0x3f8
        in al, dx
        cmp byte [left], 0
        jne store
        cmp al, 0xff
        je begin
        out dx, al
        jmp more
begin:  mov byte [left], 64
        mov word [place], code
        jmp more
store:  mov di, [place]
        mov [di], al
        inc word [place]
        dec byte [left]
        jnz more
        mov al, 0x20
        out 0x20, al
        jmp code
more:   mov dx, 0x3fd
        in al, dx
        test al, 1
        jnz next
        mov al, 0x20
        out 0x20, al
        pop di
        pop dx
        pop ax
        iret

left    equ 0x500
place   equ 0x502
code    equ 0x600
        times 510-($-$$) db 0
        dw 0xaa55
